//! The fuel of results: a few instructions of a guest return a list that the host copies, converts
//! and checks element by element.

use pointsman_interface::Reply;

use crate::bindings::{explanation, lifecycle};

/// Fuel of an element of a list: an id to be looked up, or a verdict to be checked.
const ELEMENT_FUEL: u64 = 40;

/// The result of a call, copied out of the guest's memory.
pub(super) trait Lifted {
    /// The fuel of what the host does with it.
    fn fuel(&self) -> u64;
}

fn elements(count: usize) -> u64 {
    bytes(count).saturating_mul(ELEMENT_FUEL)
}

/// The fuel of a text with so many bytes.
fn bytes(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

impl Lifted for () {
    fn fuel(&self) -> u64 {
        0
    }
}

impl Lifted for Vec<u8> {
    fn fuel(&self) -> u64 {
        bytes(self.len())
    }
}

/// The result of a call that may refuse what it was passed.
impl Lifted for Result<(), String> {
    fn fuel(&self) -> u64 {
        self.as_ref().err().map_or(0, |why| bytes(why.len()))
    }
}

impl Lifted for lifecycle::Description {
    fn fuel(&self) -> u64 {
        let texts = [&self.name, &self.version, &self.summary];
        let texts = texts.into_iter().chain(&self.reasons);
        let texts = texts.chain(self.settings.iter().flat_map(texts_of));
        let fuel = |text: &String| bytes(text.len());
        elements(self.reasons.len() + self.settings.len()) + texts.map(fuel).sum::<u64>()
    }
}

/// The texts of a setting.
fn texts_of(setting: &lifecycle::Setting) -> impl Iterator<Item = &String> {
    let values = match &setting.values {
        lifecycle::SettingValues::Choice(texts) => texts.as_slice(),
        lifecycle::SettingValues::Other(words) => std::slice::from_ref(words),
        lifecycle::SettingValues::Number(_)
        | lifecycle::SettingValues::Duration(_)
        | lifecycle::SettingValues::YesOrNo => &[],
    };
    [&setting.key, &setting.about]
        .into_iter()
        .chain(&setting.default)
        .chain(values)
}

impl Lifted for Vec<explanation::Candidate> {
    fn fuel(&self) -> u64 {
        let notes = self.iter().map(|candidate| bytes(candidate.note.len()));
        elements(self.len()) + notes.sum::<u64>()
    }
}

impl Lifted for Reply {
    fn fuel(&self) -> u64 {
        elements(self.elements())
    }
}
