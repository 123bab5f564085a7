//! Names that were probably meant.

/// The known name that `name` is most likely a misspelling or the beginning of, the first of
/// equals.
///
/// At most a third of the letters may be missing, wrong, too many, or swapped with their neighbour.
/// A name of fewer than three letters is near to everything, so nothing is suggested for it.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LETTERS_MIN: usize = 3;
    if name.chars().count() < LETTERS_MIN {
        return None;
    }
    let close = known.into_iter().filter_map(|candidate| {
        let distance_max = candidate.chars().count().div_ceil(3);
        let distance = match strsim::osa_distance(name, candidate) {
            far if far > distance_max && candidate.starts_with(name) => distance_max,
            distance => distance,
        };
        (distance <= distance_max).then_some((distance, candidate))
    });
    close
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Advice for somebody who wrote the unknown `name`: the nearest known name, else all of them.
#[must_use]
pub fn instead<S: AsRef<str>>(name: &str, known: &[S]) -> String {
    match nearest(name, known.iter().map(AsRef::as_ref)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => {
            let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
            format!("there are: {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_is_recognised() {
        let known = ["listen", "drain", "policies", "head-start", "name"];
        for (name, meant) in [
            ("listn", Some("listen")),
            ("lsiten", Some("listen")),
            ("listen", Some("listen")),
            ("polices", Some("policies")),
            ("drani", Some("drain")),
            ("head_start", Some("head-start")),
            ("nam", Some("name")),
            ("port", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(name, known), meant, "{name}");
        }
    }

    #[test]
    fn the_beginning_of_a_name_is_recognised() {
        let known = ["prompt", "priority", "preferred"];
        assert_eq!(nearest("prio", known), Some("priority"));
        assert_eq!(nearest("pro", known), Some("prompt"));
    }

    #[test]
    fn nothing_is_suggested_for_a_name_that_is_near_to_everything() {
        for name in ["", "a", "xy"] {
            assert_eq!(nearest(name, ["a-1", "b", "xz"]), None, "{name}");
        }
        assert_eq!(nearest("far", []), None);
    }

    #[test]
    fn the_first_of_equally_close_names_is_suggested() {
        assert_eq!(nearest("bat", ["cat", "hat"]), Some("cat"));
    }

    #[test]
    fn advice_names_the_nearest_or_all_there_are() {
        let levels = ["off", "info"];
        assert_eq!(instead("inof", &levels), "did you mean `info`?");
        assert_eq!(instead("loud", &levels), "there are: off, info");
    }
}
