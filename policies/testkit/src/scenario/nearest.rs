//! What somebody may have meant who wrote a word that is not known.

/// `; did you mean ...?`, where one of the `known` words is near; else nothing.
pub(super) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(word, known).map_or(String::new(), |near| format!("; did you mean `{near}`?"))
}

/// A message of the deserializer, with the nearest of the words it says it expects.
pub(super) fn with_hint(message: &str) -> String {
    let is_about_a_word = ["unknown field ", "unknown variant "]
        .iter()
        .any(|start| message.starts_with(start));
    let mut quoted = message.split('`').skip(1).step_by(2);
    match quoted.next().filter(|_| is_about_a_word) {
        Some(word) => format!("{message}{}", did_you_mean(word, quoted)),
        None => message.to_owned(),
    }
}

/// Of the known words the nearest, if it differs by no more than a third of the letters or
/// begins with the word. Of short words everything is near, so they have none.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let letters = word.chars().count();
    if letters < 3 {
        return None;
    }
    let distance = |known: &str| match strsim::osa_distance(word, known) {
        far if far > letters / 3 && known.starts_with(word) => letters / 3,
        distance => distance,
    };
    let near = known.map(|known| (distance(known), known));
    let near = near.filter(|(distance, _)| *distance <= letters / 3);
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_known_word_is_suggested() {
        let known = ["priority", "prompt", "preferred", "head-start"];
        for (word, near) in [
            ("priorty", Some("priority")),
            ("prio", Some("priority")),
            ("promtp", Some("prompt")),
            ("head_start", Some("head-start")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, known.into_iter()), near, "{word}");
        }
    }

    #[test]
    fn only_messages_about_unknown_words_get_a_hint() {
        assert_eq!(
            with_hint("unknown field `nam`, expected `name` or `slots`"),
            "unknown field `nam`, expected `name` or `slots`; did you mean `name`?"
        );
        let other = "invalid type: `nam`, expected `name`";
        assert_eq!(with_hint(other), other);
    }
}
