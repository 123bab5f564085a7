//! The cores of this machine on which threads may run.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::backend::DeviceError;

/// The most cores that a list names, by the size of the kernel's set of them.
const CORES_MAX: usize = 1024;

/// A set of cores, by the numbers that the system gives them. Written as Linux writes its lists: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(BTreeSet<usize>);

/// A text that is no list of cores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected numbers of cores below {CORES_MAX}, such as \"0-3,8\", not \"{0}\"")]
pub struct CoresError(String);

impl Cores {
    /// The cores that this process may run on; absent where the system does not say.
    #[must_use]
    pub fn usable() -> Option<Self> {
        system::usable().filter(|cores| !cores.is_empty()).map(Self)
    }

    /// Number of cores, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The cores that are in both sets; absent: none.
    #[must_use]
    pub fn shared_with(&self, other: &Self) -> Option<Self> {
        Self::of(self.0.intersection(&other.0))
    }

    /// Checks that this process may run on these cores.
    ///
    /// # Errors
    /// If it may not, or the system keeps no thread to some cores.
    pub fn check(&self) -> Result<(), DeviceError> {
        let none = || {
            DeviceError("this system keeps no thread to some cores; leave `cores` out".to_owned())
        };
        let usable = Self::usable().ok_or_else(none)?;
        match Self::of(self.0.difference(&usable.0)) {
            None => Ok(()),
            Some(beyond) => Err(DeviceError(format!(
                "this process may run on the cores {usable}, not on {beyond}; correct `cores`"
            ))),
        }
    }

    fn of<'a>(cores: impl Iterator<Item = &'a usize>) -> Option<Self> {
        let cores: BTreeSet<usize> = cores.copied().collect();
        (!cores.is_empty()).then_some(Self(cores))
    }

    /// Keeps the thread that calls to these cores, for as long as it lives.
    ///
    /// # Errors
    /// If the process may not run there, or the system keeps no thread to some cores.
    pub(super) fn hold_caller(&self) -> Result<(), DeviceError> {
        system::hold_caller(&self.0)
            .map_err(|error| DeviceError(format!("a thread is not kept to cores {self}: {error}")))
    }
}

impl FromStr for Cores {
    type Err = CoresError;

    fn from_str(text: &str) -> Result<Self, CoresError> {
        let wrong = || CoresError(text.to_owned());
        let mut cores = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| digits.trim().parse::<usize>().ok();
            let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
            if first > last || last >= CORES_MAX {
                return Err(wrong());
            }
            cores.extend(first..=last);
        }
        Ok(Self(cores))
    }
}

impl<'de> Deserialize<'de> for Cores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::collections::BTreeSet;
    use std::io;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) fn usable() -> Option<BTreeSet<usize>> {
        let set = sched_getaffinity(None).ok()?;
        Some(
            (0..CpuSet::MAX_CPU)
                .filter(|core| set.is_set(*core))
                .collect(),
        )
    }

    pub(super) fn hold_caller(cores: &BTreeSet<usize>) -> io::Result<()> {
        let mut set = CpuSet::new();
        for core in cores {
            set.set(*core);
        }
        Ok(sched_setaffinity(None, &set)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::collections::BTreeSet;
    use std::io;

    pub(super) fn usable() -> Option<BTreeSet<usize>> {
        None
    }

    pub(super) fn hold_caller(_cores: &BTreeSet<usize>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_written_as_linux_writes_it() {
        for (text, written, count) in [
            ("0", "0", 1),
            ("0-3,8", "0-3,8", 5),
            ("8, 1,0 , 2-2", "0-2,8", 4),
            ("3,4,5,1023", "3-5,1023", 4),
        ] {
            let cores: Cores = text.parse().unwrap();
            assert_eq!(
                (cores.to_string().as_str(), cores.count()),
                (written, count)
            );
        }
    }

    #[test]
    fn a_list_that_names_no_cores_is_refused_with_what_it_should_be() {
        for text in ["", "a", "3-1", "1024", "0-", "-1", "0,,1"] {
            let error = text.parse::<Cores>().unwrap_err().to_string();
            assert!(
                error.contains("\"0-3,8\"") && error.ends_with(&format!("{text:?}")),
                "{error}"
            );
        }
    }

    #[test]
    fn shared_cores_are_those_of_both() {
        let [left, right]: [Cores; 2] = ["0-3", "2-5"].map(|text| text.parse().unwrap());
        assert_eq!(left.shared_with(&right).unwrap().to_string(), "2-3");
        let apart: Cores = "4-5".parse().unwrap();
        assert_eq!(left.shared_with(&apart), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn cores_that_are_not_there_are_refused_with_those_that_are() {
        let usable = Cores::usable().unwrap();
        usable.check().unwrap();
        let more: Cores = format!("{usable},1022-1023").parse().unwrap();
        let error = more.check().unwrap_err().to_string();
        let said = format!("the cores {usable}, not on 1022-1023");
        assert!(error.contains(&said), "{error}");
    }
}
