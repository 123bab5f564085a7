//! The shadow in a server's policy folder: put there, told of, removed.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::super::server::{Answer, ServerArgs};
use super::super::settings::Given;
use super::super::status;
use super::super::stopwatch::stopwatch;
use super::super::{file, test};
use super::shadow_name;
use pointsman_experiments::stop::Stop;
use pointsman_notation::grouped;

/// The longest wait for the server to take a file: it compiles and tests it.
const TAKEN_WITHIN: Duration = Duration::from_secs(120);
/// The time between two questions to the server.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A policy that a server asks beside the one in force.
pub(super) struct Shadow<'a> {
    server: &'a ServerArgs,
    folder: PathBuf,
    put: Option<Put>,
    /// The last thing that was told of its agreement.
    told: String,
}

/// The files in the policy folder.
struct Put {
    /// The name of both without what is after the dot.
    name: String,
    /// The digest and the sidecar; absent: the files are not both there.
    version: Option<(String, String)>,
}

/// The news that a server lists of a name before its files change.
#[derive(Default)]
struct Listed {
    /// The number of the newest shadow.
    number: Option<u64>,
    refusal: Option<Value>,
}

// === impl Shadow ===

impl<'a> Shadow<'a> {
    /// Finds the policy folder of a server, on this machine.
    pub(super) fn new(server: &'a ServerArgs, folder: Option<&Path>) -> Result<Self> {
        let told = listing(server)?;
        let folder = match (folder, told["folder"]["path"].as_str()) {
            (Some(folder), _) => folder.to_owned(),
            (None, Some(path)) if Path::new(path).is_absolute() => PathBuf::from(path),
            (None, Some(path)) => bail!(
                "the server's policy folder is {path} where it was started: name it with --policies"
            ),
            (None, None) => bail!(
                "the server has no policy folder: start it with --policies FOLDER, where this command \
                 can put a shadow"
            ),
        };
        ensure!(
            folder.is_dir(),
            "there is no folder {} on this machine: name the server's policy folder with --policies",
            folder.display()
        );
        Ok(Self {
            server,
            folder,
            put: None,
            told: String::new(),
        })
    }

    /// Puts a policy into the folder, and waits until the server asks it. Returns what came of it.
    pub(super) fn put(
        &mut self,
        policy: &Path,
        settings: Option<&Path>,
        stop: &Stop,
    ) -> Result<String> {
        let bytes = file::read(policy)?;
        let limits = Given::read(settings)?.limits;
        let digest = match test::digest(policy, &bytes, limits)? {
            Ok(digest) => digest,
            Err(why) => return Ok(format!("{}: {why}\n{}", policy.display(), self.stays())),
        };
        let name = shadow_name(policy);
        let version = (digest.clone(), sidecar(settings)?);
        let own = self.put.as_ref().filter(|put| put.name == name);
        if own.is_some_and(|put| put.version.as_ref() == Some(&version)) {
            return Ok(self.stays());
        }
        let is_new = own.is_none();
        // First of all, since nothing is to be taken out while the server is away.
        let before = Listed::of(&listing(self.server)?, &name);
        if is_new {
            self.ensure_free(&name)?;
            // The policy had another name.
            self.take_out()?;
        }
        // The sidecar first: a policy without one would decide.
        self.write(&name, "toml", version.1.as_bytes())?;
        let put = Put {
            name: name.clone(),
            version: None,
        };
        self.put = Some(put);
        self.write(&name, "wasm", &bytes)?;
        if let Some(put) = &mut self.put {
            put.version = Some(version);
        }
        self.told.clear();
        self.await_taken(&digest, &before, stop)
    }

    /// The end of a try that was not good, as far as the server is concerned.
    pub(super) fn stays(&self) -> String {
        match &self.put {
            Some(put) => format!("{} stays in the server as it is\n", put.name),
            None => "nothing is put into the server\n".to_owned(),
        }
    }

    /// The agreement of the shadow with the policy in force; nothing where that was told already.
    pub(super) fn agreement(&mut self) -> String {
        let Some(put) = &self.put else {
            return String::new();
        };
        let told = match listing(self.server) {
            Ok(told) => agreement(&told, put),
            Err(error) => format!("{error:#}\n"),
        };
        if told == self.told {
            return String::new();
        }
        self.told.clone_from(&told);
        told
    }

    /// Removes what was put into the folder, and tells that.
    pub(super) fn remove(&mut self) -> Result<String> {
        Ok(match self.take_out()? {
            Some(name) => format!("stopped; {name} is out of the server again\n"),
            None => "stopped; nothing is left in the server\n".to_owned(),
        })
    }

    /// Removes what was put into the folder. Returns its name.
    fn take_out(&mut self) -> Result<Option<String>> {
        let Some(put) = &self.put else {
            return Ok(None);
        };
        // The policy first: without its sidecar it would decide.
        for ending in ["wasm", "toml"] {
            let path = self.path(&put.name, ending);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let shown = path.display();
                    return Err(error).with_context(|| format!("{shown} not removed: remove it"));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(self.put.take().map(|put| put.name))
    }

    fn path(&self, name: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{name}.{ending}"))
    }

    fn ensure_free(&self, name: &str) -> Result<()> {
        for ending in ["wasm", "toml"] {
            let path = self.path(name, ending);
            ensure!(
                !path.exists(),
                "{} is there already: another `policy dev` runs, or was killed; if so, remove it",
                path.display()
            );
        }
        Ok(())
    }

    /// Writes a file in one step, so that the server, whoever runs it, reads no half of it.
    fn write(&self, name: &str, ending: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name, ending);
        pointsman_files::replace_readable(&path, |file| file.write_all(bytes))
            .with_context(|| format!("{} not written", path.display()))
    }

    fn await_taken(&mut self, digest: &str, before: &Listed, stop: &Stop) -> Result<String> {
        let Some(put) = &self.put else {
            return Ok(String::new());
        };
        let name = put.name.clone();
        let waited = stopwatch();
        while waited() < TAKEN_WITHIN && !stop.is_asked() {
            let told = listing(self.server)?;
            if let Some(why) = refused(&told, &name, digest, before) {
                return Ok(format!("the server refuses {name}: {why}\n"));
            }
            if has(&told, &name, digest) && newest(&told, &name) > before.number {
                return Ok(format!(
                    "shadow: the server asks {name} ({})\n",
                    status::short(digest)
                ));
            }
            thread::park_timeout(ASK_AGAIN);
        }
        Ok(format!(
            "the server has not taken {name} yet; is {} its policy folder?\n",
            self.folder.display()
        ))
    }
}

// === impl Listed ===

impl Listed {
    fn of(told: &Value, name: &str) -> Self {
        Self {
            number: newest(told, name),
            refusal: refusal(told, name).cloned(),
        }
    }
}

/// The number of the newest shadow of this name.
fn newest(told: &Value, name: &str) -> Option<u64> {
    let shadows = told["shadows"].as_array()?.iter();
    let own = shadows.filter(|shadow| shadow["policy"] == name && shadow["ended"].is_null());
    own.filter_map(|shadow| shadow["number"].as_u64()).max()
}

/// The answer of `/admin/policies`.
fn listing(server: &ServerArgs) -> Result<Value> {
    match server.get("/admin/policies")? {
        Answer::Done(told) => Ok(told),
        Answer::Refused(why) => bail!("{why}"),
    }
}

/// The text of the sidecar: the given settings, and that the policy is a shadow.
fn sidecar(settings: Option<&Path>) -> Result<String> {
    let mut table = toml::Table::new();
    if let Some(path) = settings {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("settings {shown}"))?;
        table = text.parse().with_context(|| format!("settings {shown}"))?;
        table.remove("sha256");
    }
    table.insert("mode".into(), "shadow".into());
    Ok(table.to_string())
}

/// The newest refusal of this name, with its time.
fn refusal<'a>(told: &'a Value, name: &str) -> Option<&'a Value> {
    let mut refused = told["refused"].as_array()?.iter();
    refused.find(|one| one["name"] == name)
}

/// The reason why the server refuses this version. A refusal from before is none of it: a server looks at files some
/// time after they have changed.
fn refused(told: &Value, name: &str, digest: &str, before: &Listed) -> Option<String> {
    let found = refusal(told, name)?;
    let is_meant = found["digest"].is_null() || found["digest"] == digest;
    if !is_meant || before.refusal.as_ref() == Some(found) {
        return None;
    }
    let why = found["why"].as_str();
    Some(why.unwrap_or("no reason is given").to_owned())
}

fn has(told: &Value, name: &str, digest: &str) -> bool {
    let mut policies = told["policies"].as_array().into_iter().flatten();
    policies.any(|policy| policy["name"] == name && policy["digest"] == digest)
}

/// A line for each hook that was compared, and the last decision that would have been another.
fn agreement(told: &Value, put: &Put) -> String {
    let shadows = told["shadows"].as_array().into_iter().flatten();
    let own = shadows.filter(|shadow| shadow["policy"] == *put.name);
    let Some(shadow) = own.max_by_key(|shadow| shadow["number"].as_u64()) else {
        return format!("{} is not asked any more\n", put.name);
    };
    let mut text = String::new();
    for (hook, seen) in shadow["hooks"].as_object().into_iter().flatten() {
        let holder = told["hooks"][hook]["policy"]
            .as_str()
            .unwrap_or("the built-in rule");
        let compared = grouped(seen["compared"].as_u64().unwrap_or(0));
        if let Some(share) = status::share(seen) {
            text.push_str(&format!(
                "{}: {hook} agrees with {holder} in {share} of {compared}\n",
                put.name
            ));
        }
    }
    let faults = shadow["faults"].as_u64().unwrap_or(0);
    if faults > 0 {
        let last = shadow["fault_last"]["line"].as_str().unwrap_or("");
        text.push_str(&format!(
            "{}: {faults} faults, the last: {last}\n",
            put.name
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_sidecar_has_the_settings_and_never_decides() {
        assert_eq!(sidecar(None).unwrap(), "mode = \"shadow\"\n");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let text = "mode = \"enforce\"\nsha256 = \"00\"\n[settings]\nstrict = true\n";
        fs::write(&path, text).unwrap();
        let told: toml::Table = sidecar(Some(&path)).unwrap().parse().unwrap();
        assert_eq!(told["mode"].as_str(), Some("shadow"));
        assert_eq!(told["settings"]["strict"].as_bool(), Some(true));
        assert!(!told.contains_key("sha256"), "{told}");
    }

    #[test]
    fn a_refusal_from_before_is_none_of_what_is_new() {
        let at = |at_micros: u64| {
            json!({"refused": [
                {"name": "other-dev", "digest": "d", "why": "that", "at_micros": 9},
                {"name": "mine-dev", "digest": "d", "why": "this", "at_micros": at_micros},
            ]})
        };
        let before = Listed::of(&at(5), "mine-dev");
        let why = |told: &Value, before: &Listed| refused(told, "mine-dev", "d", before);
        assert_eq!(why(&at(5), &before), None);
        assert_eq!(why(&at(6), &before).as_deref(), Some("this"));
        assert_eq!(why(&at(5), &Listed::default()).as_deref(), Some("this"));
        let of_another = refused(&at(6), "mine-dev", "e", &before);
        assert_eq!(of_another, None);
    }

    #[test]
    fn what_was_not_seen_to_be_taken_is_told_of_once_it_is() {
        let put = Put {
            name: "mine-dev".to_owned(),
            version: None,
        };
        let fault = json!({"line": "mine-dev trapped"});
        let told = json!({"hooks": {}, "shadows": [
            {"policy": "mine-dev", "number": 4, "ended": null, "hooks": {}, "faults": 1, "fault_last": fault},
        ]});
        let expected = "mine-dev: 1 faults, the last: mine-dev trapped\n";
        assert_eq!(agreement(&told, &put), expected);
        let nothing = json!({"hooks": {}, "shadows": []});
        assert_eq!(
            agreement(&nothing, &put),
            "mine-dev is not asked any more\n"
        );
    }

    #[test]
    fn the_last_fault_is_told_in_its_line() {
        let put = Put {
            name: "mine".to_owned(),
            version: Default::default(),
        };
        let fault = json!({"line": "mine trapped at routing", "trace": "  in route"});
        let told = json!({"hooks": {}, "shadows": [
            {"policy": "another", "number": 9, "hooks": {}, "faults": 7, "fault_last": null},
            {"policy": "mine", "number": 4, "hooks": {}, "faults": 2, "fault_last": fault},
        ]});
        let expected = "mine: 2 faults, the last: mine trapped at routing\n";
        assert_eq!(agreement(&told, &put), expected);
    }
}
