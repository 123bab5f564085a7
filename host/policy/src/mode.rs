//! The mode of a policy: its answers count always, for a share of what is decided, or not at all.

use std::fmt;
use std::str::FromStr;

use pointsman_core::{Hook, HookSet};
use serde::{Deserialize, Serialize};

/// The weight of a policy's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Mode {
    /// All answers count.
    #[default]
    Enforce,
    /// Answers are only compared with those of the policy in force, which is asked the same.
    Shadow,
    /// Answers about this share of tenants, sessions or requests count.
    Canary(CanaryShare),
}

/// A share of tenants, sessions or requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanaryShare {
    /// The size of the share.
    pub percent: Percent,
    /// The things that are in the share or not.
    pub of: CanaryUnit,
}

/// A thing that is decided by a canary or not, as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CanaryUnit {
    /// All requests of a tenant.
    #[default]
    Tenants,
    /// All requests of a session; a request without one stands for itself.
    Sessions,
    /// Each request.
    Requests,
}

/// A share in percent, from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Percent(u8);

/// A text that is no [`Mode`], a number that is no [`Percent`], or a mode that a policy cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModeError {
    /// The text is none of the modes.
    #[error(
        "mode is {0:?}, it must be enforce, shadow, or canary with a share such as canary 10% or canary \
         10% of sessions"
    )]
    Unknown(String),
    /// The share is not from 1 to 100 percent.
    #[error("a canary has from 1% to 100%, not {0:?}")]
    NoShare(String),
    /// The text names nothing that can be divided.
    #[error("a canary has a share of tenants, sessions or requests, not of {0:?}")]
    NoUnit(String),
    /// The policy has no hook at which a canary can be asked.
    #[error(
        "mode is canary, and it exports neither admission nor routing: only there can tenants be told \
         apart"
    )]
    NoCanaryHook,
}

impl CanaryUnit {
    const ALL: [CanaryUnit; 3] = [Self::Tenants, Self::Sessions, Self::Requests];

    /// The name of the unit, in the plural.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            CanaryUnit::Tenants => "tenants",
            CanaryUnit::Sessions => "sessions",
            CanaryUnit::Requests => "requests",
        }
    }
}

impl FromStr for CanaryUnit {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        let mut units = Self::ALL.into_iter();
        let named = units.find(|unit| unit.as_str() == text);
        named.ok_or_else(|| ModeError::NoUnit(text.to_owned()))
    }
}

impl From<Percent> for CanaryShare {
    /// The share of the tenants.
    fn from(percent: Percent) -> Self {
        Self {
            percent,
            of: CanaryUnit::Tenants,
        }
    }
}

impl fmt::Display for CanaryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            CanaryUnit::Tenants => self.percent.fmt(f),
            CanaryUnit::Sessions | CanaryUnit::Requests => {
                write!(f, "{} of {}", self.percent, self.of.as_str())
            }
        }
    }
}

impl FromStr for CanaryShare {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        let (percent, of) = match text.split_once(" of ") {
            Some((percent, of)) => (percent.trim_end(), of.trim().parse()?),
            None => (text, CanaryUnit::default()),
        };
        let percent = percent.parse()?;
        Ok(Self { percent, of })
    }
}

impl Percent {
    /// The share that contains all.
    pub const ALL: Percent = Percent(100);

    /// Makes a share of `percent` percent.
    ///
    /// # Errors
    /// If the number is not from 1 to 100.
    pub fn new(percent: u8) -> Result<Self, ModeError> {
        Self::try_from(percent)
    }

    /// The share in percent: about this many of a hundred.
    #[must_use]
    pub fn of_hundred(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for Percent {
    type Error = ModeError;

    fn try_from(percent: u8) -> Result<Self, ModeError> {
        if (1..=100).contains(&percent) {
            Ok(Self(percent))
        } else {
            Err(ModeError::NoShare(format!("{percent}%")))
        }
    }
}

impl From<Percent> for u8 {
    fn from(percent: Percent) -> Self {
        percent.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for Percent {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        let number = text.strip_suffix('%').map(str::trim_end);
        let digits = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        digits
            .and_then(|digits| digits.parse::<u8>().ok())
            .and_then(|percent| Self::try_from(percent).ok())
            .ok_or_else(|| ModeError::NoShare(text.to_owned()))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Enforce => f.write_str("enforce"),
            Mode::Shadow => f.write_str("shadow"),
            Mode::Canary(share) => write!(f, "canary {share}"),
        }
    }
}

impl Mode {
    /// The modes as they are written ([`fmt::Display`]), as a regular expression for schemas.
    pub const PATTERN: &str =
        "^(enforce|shadow|canary (100|[1-9][0-9]?)%( of (tenants|sessions|requests))?)$";

    /// Checks that a policy with these `hooks` can be in the mode.
    ///
    /// # Errors
    /// If it is that of a canary, and no question can be put to one.
    pub fn check(self, hooks: HookSet) -> Result<(), ModeError> {
        match self {
            Mode::Canary(_) if !hooks.iter().any(Hook::is_by_request) => {
                Err(ModeError::NoCanaryHook)
            }
            Mode::Canary(_) | Mode::Enforce | Mode::Shadow => Ok(()),
        }
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        match text.trim() {
            "enforce" => Ok(Mode::Enforce),
            "shadow" => Ok(Mode::Shadow),
            other => match other.split_once(char::is_whitespace) {
                Some(("canary", share)) => Ok(Mode::Canary(share.trim_start().parse()?)),
                Some(_) | None => Err(ModeError::Unknown(text.to_owned())),
            },
        }
    }
}

impl TryFrom<String> for Mode {
    type Error = ModeError;

    fn try_from(text: String) -> Result<Self, ModeError> {
        text.parse()
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_reads_as_it_is_written() {
        for text in [
            "enforce",
            "shadow",
            "canary 1%",
            "canary 10%",
            "canary 100%",
        ] {
            let mode: Mode = text.parse().unwrap();
            assert_eq!(mode.to_string(), text);
            let json = serde_json::to_string(&mode).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Mode>(&json).unwrap(), mode);
        }
        assert_eq!(" canary  10 % ".parse(), "canary 10%".parse::<Mode>());
    }

    #[test]
    fn says_what_is_wrong_with_a_mode() {
        let say = |text: &str| text.parse::<Mode>().unwrap_err().to_string();
        let unknown = ["", "canary", "canary10%", "Enforce", "shadow 10%"];
        for text in unknown {
            assert!(say(text).starts_with("mode is "), "{text}: {}", say(text));
        }
        for text in [
            "canary 0%",
            "canary 101%",
            "canary 10",
            "canary +5%",
            "canary 300%",
        ] {
            assert!(
                say(text).contains("from 1% to 100%"),
                "{text}: {}",
                say(text)
            );
        }
    }

    #[test]
    fn a_share_is_from_1_to_100() {
        assert!(Percent::new(0).is_err() && Percent::new(101).is_err());
        assert_eq!(Percent::new(100), Ok(Percent::ALL));
        assert!(serde_json::from_str::<Percent>("0").is_err());
    }
}
