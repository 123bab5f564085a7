//! Events: steps of a scenario as text, with the names that they bring and need.

use std::collections::BTreeSet;

/// An event of a run: one or more steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// The steps, as they stand in a scenario.
    text: String,
    /// Names that are there after the event.
    defines: Vec<String>,
    /// Names that must be there before it.
    uses: Vec<String>,
}

/// A table of the fleet or of the machine's bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// Its name, by which events need it; absent: the machine's bounds.
    name: Option<String>,
    text: String,
}

// === impl Table ===

impl Table {
    /// Makes a table of this kind; `keys` are its other lines.
    pub(super) fn named(kind: &str, name: &str, keys: &[String]) -> Self {
        let keys: String = keys.iter().map(|key| format!("{key}\n")).collect();
        Self {
            name: Some(name.to_owned()),
            text: format!("\n[[{kind}]]\nname = \"{name}\"\n{keys}"),
        }
    }

    /// Makes the table of the machine's bounds.
    pub(super) fn machine(bounds: &[String]) -> Self {
        Self {
            name: None,
            text: format!("\n[machine]\n{}\n", bounds.join("\n")),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// True if none of these events needs it, as far as their texts say.
    pub(super) fn is_idle(&self, events: &[Event]) -> bool {
        let quoted = self.name.as_ref().map(|name| format!("\"{name}\""));
        quoted.is_none_or(|name| !events.iter().any(|event| event.text.contains(&name)))
    }

    pub(super) fn is_machine(&self) -> bool {
        self.name.is_none()
    }
}

// === impl Event ===

impl Event {
    /// A step that does this.
    pub(super) fn new(action: String) -> Self {
        Self {
            text: format!("\n[[step]]\n{action}\n"),
            ..Self::default()
        }
    }

    /// The same event, after which something has this name.
    pub(super) fn defining(mut self, name: String) -> Self {
        self.defines.push(name);
        self
    }

    /// The same event, about what has these names.
    pub(super) fn using(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.uses.extend(names);
        self
    }

    /// Adds the steps of another event.
    pub(super) fn append(&mut self, other: Self) {
        self.text.push_str(&other.text);
        self.defines.extend(other.defines);
        self.uses.extend(other.uses);
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

/// The events of which everything that they need is there by then.
pub(super) fn consistent(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut there: BTreeSet<String> = BTreeSet::new();
    let events = events.into_iter().filter(|event| {
        let is_possible = event.uses.iter().all(|name| there.contains(name));
        if is_possible {
            there.extend(event.defines.iter().cloned());
        }
        is_possible
    });
    events.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_something_that_is_not_there_is_left_out() {
        let attach = Event::new("attach = 1".to_owned()).defining("e1".to_owned());
        let arrive = Event::new("arrive = 1".to_owned())
            .defining("r1".to_owned())
            .using(["e1".to_owned()]);
        let cancel = Event::new("cancel = 'r1'".to_owned()).using(["r1".to_owned()]);
        let all = [attach.clone(), arrive.clone(), cancel.clone()];
        assert_eq!(consistent(all.clone()), all);
        assert_eq!(
            consistent([arrive, cancel.clone(), attach.clone()]),
            [attach]
        );
        assert_eq!(consistent([cancel]), []);
    }
}
