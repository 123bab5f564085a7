//! The hub of models, by the variables of the environment that all of its tools know.

use std::fs;
use std::path::PathBuf;

use pointsman_notation::Secret;

const ENDPOINT: &str = "https://huggingface.co";
const YES: [&str; 4] = ["1", "on", "yes", "true"];

/// The hub, and its cache on this machine.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The address of the hub: `HF_ENDPOINT`.
    pub endpoint: String,
    /// The cache: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, by default `~/.cache/huggingface`; absent: there is no home.
    pub cache: Option<PathBuf>,
    /// The key that the hub wants for some models: `HF_TOKEN`; absent: the one in [`Self::token_file`], if it is there.
    pub token: Option<Secret>,
    /// The file in which the hub's tools keep a key: `HF_TOKEN_PATH`, or `token` in `HF_HOME`.
    pub token_file: Option<PathBuf>,
    /// The reach of this machine: `HF_HUB_OFFLINE`.
    pub reach: Reach,
}

/// The reach of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The hub is asked.
    Online,
    /// The cache has what there is.
    Offline,
}

impl HubSettings {
    /// The settings that these variables of the environment make.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let path = |name: &str| given(name).map(PathBuf::from);
        let home = || Some(path("HOME")?.join(".cache"));
        let home = || Some(path("XDG_CACHE_HOME").or_else(home)?.join("huggingface"));
        let home = path("HF_HOME").or_else(home);
        let in_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let offline = given("HF_HUB_OFFLINE").map(|value| value.trim().to_lowercase());
        let is_offline = offline.is_some_and(|value| YES.contains(&&*value));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        Self {
            endpoint: given("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned()),
            cache: cache.or_else(|| in_home("hub")),
            token: given("HF_TOKEN").map(|token| Secret::new(token.trim().to_owned())),
            token_file: path("HF_TOKEN_PATH").or_else(|| in_home("token")),
            reach: match is_offline {
                true => Reach::Offline,
                false => Reach::Online,
            },
        }
    }

    /// The key, if there is one.
    pub(crate) fn token(&self) -> Option<Secret> {
        let of_file = || {
            let text = fs::read_to_string(self.token_file.as_ref()?).ok()?;
            let text = text.trim();
            (!text.is_empty()).then(|| Secret::new(text.to_owned()))
        };
        self.token.clone().or_else(of_file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> HubSettings {
        HubSettings::of_environment(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_cache_is_where_the_tools_of_the_hub_look_for_it() {
        for (variables, cache) in [
            (&[("HOME", "/h")][..], "/h/.cache/huggingface/hub"),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                "/x/huggingface/hub",
            ),
            (&[("HOME", "/h"), ("HF_HOME", "/f")], "/f/hub"),
            (&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HF_HOME", " "), ("HUGGINGFACE_HUB_CACHE", "/c")], "/c"),
        ] {
            assert_eq!(of(variables).cache, Some(cache.into()), "{variables:?}");
        }
        assert_eq!(of(&[]).cache, None);
    }

    #[test]
    fn endpoint_key_and_reach_are_taken_from_the_environment() {
        assert_eq!(of(&[]).endpoint, "https://huggingface.co");
        assert_eq!(
            of(&[("HF_ENDPOINT", "http://mirror")]).endpoint,
            "http://mirror"
        );
        for (value, reach) in [
            ("1", Reach::Offline),
            ("TRUE", Reach::Offline),
            ("0", Reach::Online),
        ] {
            assert_eq!(of(&[("HF_HUB_OFFLINE", value)]).reach, reach, "{value}");
        }
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("token"), "of-the-file\n").unwrap();
        let file = home.path().to_str().unwrap();
        let token = |settings: HubSettings| settings.token().map(|token| token.to_string());
        assert_eq!(
            token(of(&[("HF_HOME", file)])).as_deref(),
            Some("of-the-file")
        );
        let both = of(&[("HF_HOME", file), ("HF_TOKEN", "given")]);
        assert_eq!(token(both).as_deref(), Some("given"));
        assert_eq!(token(of(&[])), None);
    }
}
