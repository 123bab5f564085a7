//! `policy inspect`: the facts of a file. It need not be a policy. Of one that is, `describe` alone is
//! called, which tells its settings.

use anyhow::Result;
use pointsman_component::{Digest, Limits};
use pointsman_policy::PolicySource;
use serde_json::Map;

use super::facts::{FileFacts, SECTIONS};
use super::table::Facts;
use super::{Done, PolicyFileArg, check, file};
use pointsman_notation::grouped;

/// Arguments of `policy inspect`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    file: PolicyFileArg,
}

pub(super) fn run(args: &Args) -> Result<Done> {
    let path = &args.file.file;
    let bytes = file::read(path)?;
    let mut text = format!("{}\n", path.display());
    match FileFacts::read(&bytes) {
        Ok(FileFacts {
            component: Some(interfaces),
            author,
        }) => {
            let mut facts = identity(&bytes);
            facts.list("imports", interfaces.imports);
            facts.list("exports", interfaces.exports);
            facts.list("name", author.name);
            for (section, text) in SECTIONS.into_iter().zip(author.texts) {
                facts.list(section, text);
            }
            if let Some(settings) = settings(&bytes)? {
                facts.list("settings", settings);
            }
            text.push_str(&facts.text());
            Ok(Done::good(text))
        }
        Ok(FileFacts {
            component: None, ..
        })
        | Err(_) => {
            text.push_str(&identity(&bytes).text());
            // Nothing is compiled here: a file that is no component is refused before that.
            if let Err(error) = file::load(&bytes)? {
                text.push_str(&format!("no component: {error}\n"));
            }
            Ok(Done::not_good(text))
        }
    }
}

/// The settings that a policy describes; absent: the file is no policy of this release, and
/// `policy check` says why.
fn settings(bytes: &[u8]) -> Result<Option<Vec<String>>> {
    let Ok(component) = file::load(bytes)? else {
        return Ok(None);
    };
    let source = PolicySource::component(&component, &Map::new(), Limits::default());
    let said = pointsman_policy::describe(&source).ok();
    Ok(said.map(|said| said.settings.iter().map(check::setting).collect()))
}

/// The size and the digest of a file.
pub(super) fn identity(bytes: &[u8]) -> Facts {
    let mut facts = Facts::default();
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    facts.add("size", format!("{} bytes", grouped(size)));
    facts.add("sha256", Digest::of(bytes).to_string());
    facts
}
