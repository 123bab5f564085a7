//! The facts in a component's file beside its code: imports, exports, and the author's facts.
//!
//! Facts are custom sections of the names and form that `wasm-tools metadata` and OCI registries
//! use, so that tools of others show them too.

use anyhow::Result;
use wasm_encoder::{ComponentNameSection, ComponentSection, CustomSection};
use wasmparser::{
    BinaryReader, ComponentName, ComponentNameSectionReader, Encoding, Parser, Payload,
};

/// The author's facts about a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AuthorFacts {
    pub(super) name: Option<String>,
    /// Texts in the order of [`SECTIONS`]; absent: the author gives none.
    pub(super) texts: [Option<String>; SECTIONS.len()],
}

/// Names of the custom sections.
pub(super) const SECTIONS: [&str; 5] = ["version", "description", "authors", "licenses", "source"];

/// The facts in a file of any kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileFacts {
    /// The component's imports and exports; absent: the file is no component.
    pub(super) component: Option<Interfaces>,
    pub(super) author: AuthorFacts,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interfaces {
    pub(super) imports: Vec<String>,
    pub(super) exports: Vec<String>,
}

// === impl AuthorFacts ===

impl AuthorFacts {
    /// Adds the facts to a component.
    pub(super) fn append_to(&self, component: &mut Vec<u8>) {
        if let Some(name) = &self.name {
            let mut names = ComponentNameSection::new();
            names.component(name);
            names.append_to_component(component);
        }
        for (section, text) in SECTIONS.iter().zip(&self.texts) {
            if let Some(text) = text {
                let section = CustomSection {
                    name: (*section).into(),
                    data: text.as_bytes().into(),
                };
                section.append_to_component(component);
            }
        }
    }

    fn note(&mut self, section: &str, data: &[u8]) {
        let place = SECTIONS.iter().position(|known| *known == section);
        if let Some(text) = place.and_then(|idx| self.texts.get_mut(idx)) {
            *text = Some(String::from_utf8_lossy(data).into_owned());
        }
        if section == "component-name" {
            let names = ComponentNameSectionReader::new(BinaryReader::new(data, 0));
            for name in names.into_iter().flatten() {
                if let ComponentName::Component { name, .. } = name {
                    self.name = Some(name.to_owned());
                }
            }
        }
    }
}

// === impl FileFacts ===

impl FileFacts {
    /// Reads the facts in the bytes of a file.
    ///
    /// # Errors
    /// If the file cannot be read to its end.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many sections only a few say something about the file"
    )]
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let mut facts = Self::default();
        let mut depth = 0_u32;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::Version {
                    encoding: Encoding::Component,
                    ..
                } if depth == 0 => {
                    facts.component = Some(Interfaces::default());
                }
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 0 => {
                    let imports = facts.component.get_or_insert_default();
                    for import in section {
                        imports.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    let exports = facts.component.get_or_insert_default();
                    for export in section {
                        exports.exports.push(export?.name.name.to_owned());
                    }
                }
                Payload::CustomSection(section) if depth == 0 => {
                    facts.author.note(section.name(), section.data());
                }
                _ => {}
            }
        }
        // The order they stand in is their encoder's and means nothing.
        if let Some(interfaces) = &mut facts.component {
            interfaces.imports.sort_unstable();
            interfaces.exports.sort_unstable();
        }
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

    #[test]
    fn what_the_author_says_is_read_back_as_it_was_written() {
        let author = AuthorFacts {
            name: Some("mine".into()),
            texts: [Some("1.2.3"), None, Some("Ä <a@b.c>"), Some("MIT"), None]
                .map(|text| text.map(str::to_owned)),
        };
        let mut bytes = COMPONENT.to_vec();
        author.append_to(&mut bytes);
        let read = FileFacts::read(&bytes).unwrap();
        assert_eq!(read.author, author);
        assert_eq!(read.component, Some(Interfaces::default()));
    }

    #[test]
    fn a_core_module_is_told_from_a_component_and_text_from_both() {
        assert_eq!(
            FileFacts::read(b"\0asm\x01\0\0\0").unwrap(),
            FileFacts::default()
        );
        assert!(FileFacts::read(b"text").is_err());
    }
}
