//! The name that was probably meant: the configuration and the reconciler refuse unknown names
//! with it.

/// The known name that `name` is most likely a misspelling of, if any is close: at most a third of
/// its letters are missing, wrong, too many, or swapped with their neighbour. The first of equals.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let close = known.iter().filter_map(|candidate| {
        let distance = strsim::osa_distance(name, candidate);
        let letters = candidate.chars().count();
        (distance < letters && distance <= letters.div_ceil(3)).then_some((distance, *candidate))
    });
    close
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_probably_meant() {
        let known = ["listen", "drain", "policies"];
        for (name, meant) in [
            ("listn", Some("listen")),
            ("lsiten", Some("listen")),
            ("listen", Some("listen")),
            ("polices", Some("policies")),
            ("drani", Some("drain")),
            ("port", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, &known), meant, "{name}");
        }
    }

    #[test]
    fn a_name_with_nothing_in_common_is_never_meant() {
        assert_eq!(nearest("b", &["a"]), None);
        assert_eq!(nearest("x", &[]), None);
    }

    #[test]
    fn the_first_of_equally_close_names_is_taken() {
        assert_eq!(nearest("bat", &["cat", "hat"]), Some("cat"));
    }
}
