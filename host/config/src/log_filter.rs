//! Filters of the log, as texts.

use pointsman_notation::instead;
use tracing_subscriber::filter::{LevelFilter, Targets};

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// A filter that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// A word that is no level.
    #[error("no level is called `{0}`; {hint}", hint = instead(.0, &LEVELS.map(|(name, _)| name)))]
    NoLevel(String),
    /// A level for nothing.
    #[error("a module's name is missing before `=` in `{0}`")]
    NoTarget(String),
}

/// The targets of a filter: `LEVEL`, or `TARGET=LEVEL` for modules whose names begin with `TARGET`,
/// or several of these with commas between them. The longest target that fits decides.
///
/// # Errors
/// If a part is neither: the first such part. Unlike [`Targets`] this function takes no mistyped
/// level for a target.
pub fn targets(filter: &str) -> Result<Targets, FilterError> {
    let mut targets = Targets::new();
    for part in filter.split(',').map(str::trim) {
        targets = match part.split_once('=') {
            Some(("", _)) => return Err(FilterError::NoTarget(part.to_owned())),
            Some((target, level)) => targets.with_target(target.trim(), self::level(level.trim())?),
            None => targets.with_default(level(part)?),
        };
    }
    Ok(targets)
}

fn level(name: &str) -> Result<LevelFilter, FilterError> {
    let known = LEVELS.iter().find(|(known, _)| *known == name);
    match known {
        Some((_, level)) => Ok(*level),
        None => Err(FilterError::NoLevel(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_means_nothing_is_refused() {
        for (filter, said) in [
            ("inof", "no level is called `inof`; did you mean `info`?"),
            (
                "",
                "no level is called ``; there are: off, error, warn, info, debug, trace",
            ),
            (
                "info,pointsman=loud",
                "no level is called `loud`; there are: off, error, warn, info, debug, trace",
            ),
            ("=info", "a module's name is missing before `=` in `=info`"),
        ] {
            assert_eq!(targets(filter).unwrap_err().to_string(), said, "{filter}");
        }
    }
}
