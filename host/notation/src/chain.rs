//! Errors with their causes.

use std::error::Error;
use std::iter;

/// An error and all its causes in one line, with a colon before each cause.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let text = error.to_string();
    causes(error).fold(text, |text, cause| format!("{text}: {cause}"))
}

/// The causes of an error, the nearest first.
pub fn causes<'e>(error: &'e (dyn Error + 'e)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    iter::successors(error.source(), |&cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{what}")]
    struct Link {
        what: &'static str,
        source: Option<Box<Link>>,
    }

    #[test]
    fn each_cause_follows_what_it_caused() {
        let link = |what, source| Link { what, source };
        let root = link("no such file", None);
        let error = link(
            "settings",
            Some(Box::new(link("x.toml", Some(Box::new(root))))),
        );
        assert_eq!(chain(&error), "settings: x.toml: no such file");
        assert_eq!(chain(&link("alone", None)), "alone");
    }
}
