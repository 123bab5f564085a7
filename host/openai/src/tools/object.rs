//! A call as a JSON object, read character by character as a model writes it.
//!
//! Its name is known as soon as it is written, and its arguments as far as they are. Whether all of it is
//! JSON is looked at when it has ended.

use serde_json::{Map, Value, from_str};

/// The reader of one object.
#[derive(Debug, Default)]
pub(super) struct CallObject {
    /// Everything read so far, as it came.
    pub(super) raw: String,
    /// The same with escapes for new lines, tabs and the like in texts, which models forget to escape.
    json: String,
    /// Objects and lists that are open.
    depth: usize,
    string: InString,
    side: Side,
    /// The place in `json` at which the latest text of the object's own began.
    start: usize,
    /// The key of the value that is read.
    key: String,
    pub(super) name: Option<String>,
    arguments: Option<Arguments>,
    /// The place in `json` up to which the arguments were told.
    told: usize,
}

/// The place of a reader within a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InString {
    #[default]
    No,
    Yes,
    /// After a backslash.
    Escaped,
}

/// The side of the colon, of the object's own pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Side {
    #[default]
    Key,
    Value,
}

/// The place of arguments that are an object.
#[derive(Clone, Copy, Debug)]
struct Arguments {
    /// The place in `json` behind what there is of them.
    until: usize,
    progress: Progress,
}

/// The progress of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Open,
    Whole,
}

/// The progress by one character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    More,
    /// The object has ended with this character.
    Done,
    /// This is no call.
    Broken,
}

impl CallObject {
    /// Reads a character.
    pub(super) fn push(&mut self, char: char) -> Scanned {
        let at = self.json.len();
        self.raw.push(char);
        if self.string == InString::Yes && char < ' ' {
            let escaped = Value::from(char.to_string()).to_string();
            self.json.push_str(escaped.trim_matches('"'));
        } else {
            self.json.push(char);
        }
        match (self.string, char) {
            (InString::Yes, '"') => self.end_text(),
            (InString::Yes, '\\') => self.string = InString::Escaped,
            (InString::Yes, _) => {}
            (InString::Escaped, _) => self.string = InString::Yes,
            (InString::No, _) => return self.push_outside(char, at),
        }
        self.extend_arguments();
        Scanned::More
    }

    /// Reads a character that is in no text, and at the place `at` in `json`.
    fn push_outside(&mut self, char: char, at: usize) -> Scanned {
        match (self.depth, char) {
            (0, '{') => self.depth = 1,
            (0, _) if char.is_ascii_whitespace() => {}
            (0, _) => return Scanned::Broken,
            (1, '}') => return self.end(),
            (_, '{' | '[') => self.open(char, at),
            (_, '}' | ']') => self.depth -= 1,
            (_, '"') => {
                self.string = InString::Yes;
                if self.depth == 1 {
                    self.start = at;
                }
            }
            (1, ':') => self.side = Side::Value,
            (1, ',') => self.side = Side::Key,
            _ => {}
        }
        self.extend_arguments();
        Scanned::More
    }

    fn open(&mut self, char: char, at: usize) {
        self.depth += 1;
        let is_arguments = self.depth == 2 && char == '{' && is_arguments(&self.key);
        if is_arguments && self.side == Side::Value && self.arguments.is_none() {
            self.told = at;
            self.arguments = Some(Arguments {
                until: at,
                progress: Progress::Open,
            });
        }
    }

    /// Ends a text, which may be a key or the name.
    fn end_text(&mut self) {
        self.string = InString::No;
        if self.depth != 1 {
            return;
        }
        let text: Option<String> = from_str(&self.json[self.start..]).ok();
        match self.side {
            Side::Key => self.key = text.unwrap_or_default(),
            Side::Value if self.key == "name" && self.name.is_none() => self.name = text,
            Side::Value => {}
        }
    }

    fn extend_arguments(&mut self) {
        let end = self.json.len();
        if let Some(arguments) = &mut self.arguments
            && arguments.progress == Progress::Open
        {
            arguments.until = end;
            if self.depth == 1 {
                arguments.progress = Progress::Whole;
            }
        }
    }

    /// Ends the object.
    fn end(&mut self) -> Scanned {
        self.depth = 0;
        let whole: Option<Map<String, Value>> = from_str(&self.json).ok();
        if whole.is_some() && self.name.is_some() {
            return Scanned::Done;
        }
        Scanned::Broken
    }

    /// True behind the name and whole arguments, where an object's end may follow.
    pub(super) fn may_end(&self) -> bool {
        let is_within = self.depth == 1 && self.string == InString::No;
        is_within && self.name.is_some() && self.has_whole_arguments()
    }

    /// True if the arguments have come, and were an object.
    pub(super) fn has_whole_arguments(&self) -> bool {
        let arguments = self.arguments.as_ref();
        arguments.is_some_and(|arguments| arguments.progress == Progress::Whole)
    }

    /// Takes what has come of the arguments since the last call.
    pub(super) fn take_arguments(&mut self) -> String {
        let Some(Arguments { until, .. }) = self.arguments else {
            return String::new();
        };
        let new = self.json[self.told..until].to_owned();
        self.told = until;
        new
    }

    /// The arguments of a whole object that did not come as an object: as the JSON text of one, or none.
    pub(super) fn other_arguments(&self) -> Option<String> {
        if self.arguments.is_some() {
            return None;
        }
        let whole: Map<String, Value> = from_str(&self.json).unwrap_or_default();
        let given = whole.into_iter().find(|(key, _)| is_arguments(key));
        Some(match given {
            Some((_, Value::String(text))) => text,
            Some(_) | None => "{}".to_owned(),
        })
    }
}

fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters")
}
