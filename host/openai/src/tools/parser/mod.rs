//! Calls of tools read out of an answer's text as it comes.
//!
//! Text that may be the beginning of a call is held back until it is clear. What looks like a call and is
//! none is text: a call names a tool that the client has given.
//!
//! # Invariants
//! However a text is cut, the same calls and the same text come of it
//! (`tests::however_a_text_is_cut_the_same_comes_of_it`).

use std::mem;
use std::sync::Arc;

use pointsman_executor::tools::CallSyntax;
use serde_json::json;

use super::object::{CallObject, Scanned};

/// A part of an answer, as its client is shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    /// More of the text; never empty.
    Text(String),
    /// A call begins: the number of it, and the function's name.
    CallBegins(u32, String),
    /// More of the arguments of a call; never empty.
    Arguments(u32, String),
}

/// The calls of an answer that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Several {
    #[default]
    All,
    /// Others are dropped.
    FirstOnly,
}

/// The reader of an answer.
#[derive(Debug)]
pub(crate) struct CallParser {
    // Immutable.
    syntax: CallSyntax,
    names: Arc<[String]>,
    several: Several,
    // Owned.
    place: Place,
    /// Text that is held back.
    held: String,
    /// The mark before a call and what follows it, while it may turn out to be text.
    opened: String,
    /// The call that is read.
    object: CallObject,
    shape: Shape,
    /// Its number, once it is known to be a call.
    begun: Option<u32>,
    /// Calls that have begun.
    calls: u32,
    parts: Vec<AnswerPart>,
}

/// The place of a reader within an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing has come but white space, and a call may be the whole answer.
    Start,
    /// In text, in which a mark begins calls.
    Text,
    /// In text in which nothing can begin a call.
    PlainText,
    /// Behind the mark, before the first call.
    Marked,
    /// In the name that stands before the arguments.
    Name,
    /// In a call.
    Object,
    /// Behind a call.
    AfterCall,
}

/// The shape of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shape {
    /// An object with name and arguments.
    #[default]
    Object,
    /// A name, and then the arguments, which are read as if they were in an object.
    NameFirst,
}

const ARGUMENTS_MARK: &str = "[ARGS]";
const CALL_END: &str = "</tool_call>";
const PYTHON_MARK: &str = "<|python_tag|>";

impl CallParser {
    pub(super) fn new(syntax: CallSyntax, names: Arc<[String]>, several: Several) -> Self {
        let place = match syntax {
            CallSyntax::Bare => Place::Start,
            CallSyntax::Tags | CallSyntax::MarkedList | CallSyntax::MarkedName => Place::Text,
        };
        Self {
            syntax,
            names,
            several,
            place,
            held: String::new(),
            opened: String::new(),
            object: CallObject::default(),
            shape: Shape::default(),
            begun: None,
            calls: 0,
            parts: Vec::new(),
        }
    }

    /// Reads more of the answer. Returns what is clear by now.
    pub(crate) fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        for char in text.chars() {
            self.read(char);
        }
        self.release_text();
        mem::take(&mut self.parts)
    }

    /// Ends the answer. Returns what was held back.
    pub(crate) fn finish(&mut self) -> Vec<AnswerPart> {
        match self.place {
            Place::Object => self.give_up_object(),
            Place::Marked | Place::Name => self.unmark(),
            // The beginning of the tag that ends it.
            Place::AfterCall => self.held.clear(),
            Place::Start | Place::Text | Place::PlainText => {}
        }
        let held = mem::take(&mut self.held);
        let is_between_calls = self.calls > 0 && held.trim_ascii().is_empty();
        if !is_between_calls {
            self.show(held);
        }
        mem::take(&mut self.parts)
    }

    /// True if the answer has a call.
    pub(crate) fn has_called(&self) -> bool {
        self.calls > 0
    }

    /// The mark that begins calls.
    fn mark(&self) -> &'static str {
        match self.syntax {
            CallSyntax::Tags => "<tool_call>",
            CallSyntax::MarkedList | CallSyntax::MarkedName => "[TOOL_CALLS]",
            CallSyntax::Bare => PYTHON_MARK,
        }
    }

    fn read(&mut self, char: char) {
        match self.place {
            Place::PlainText => self.held.push(char),
            Place::Text => self.read_text(char),
            Place::Start => self.read_start(char),
            Place::Marked => self.read_marked(char),
            Place::Name => self.read_name(char),
            Place::Object => self.read_in_call(char),
            Place::AfterCall => self.read_after_call(char),
        }
    }

    fn read_text(&mut self, char: char) {
        self.held.push(char);
        if let Some(before) = self.held.strip_suffix(self.mark()) {
            let before = before.trim_ascii_end().to_owned();
            self.show(before);
            self.held.clear();
            self.opened = self.mark().to_owned();
            self.place = Place::Marked;
        }
    }

    /// Reads the beginning of an answer that may be a call as a whole.
    fn read_start(&mut self, char: char) {
        if char == '{' && ["", PYTHON_MARK].contains(&self.held.trim_ascii()) {
            self.opened = mem::take(&mut self.held);
            self.begin_object(char);
            return;
        }
        self.held.push(char);
        let begun = self.held.trim_ascii();
        if !PYTHON_MARK.starts_with(begun) {
            self.place = Place::PlainText;
        }
    }

    fn read_marked(&mut self, char: char) {
        match (self.syntax, char) {
            (_, '{') => self.begin_object(char),
            _ if char.is_ascii_whitespace() => self.opened.push(char),
            (CallSyntax::MarkedList | CallSyntax::MarkedName, '[') => self.opened.push(char),
            (CallSyntax::MarkedList | CallSyntax::MarkedName, _) => {
                self.held.push(char);
                self.place = Place::Name;
            }
            (CallSyntax::Tags | CallSyntax::Bare, _) => {
                self.unmark();
                self.read_text(char);
            }
        }
    }

    /// Reads the name of a function, up to its arguments: `name[ARGS]{...}`, or `name{...}`.
    fn read_name(&mut self, char: char) {
        if char != '{' {
            self.held.push(char);
            return;
        }
        let named = self.held.trim_ascii().trim_end_matches(ARGUMENTS_MARK);
        let name = named.split("[CALL_ID]").next().unwrap_or(named);
        let name = name.trim_ascii().to_owned();
        if !self.names.contains(&name) {
            self.unmark();
            self.read_text(char);
            return;
        }
        self.begin_object('{');
        self.shape = Shape::NameFirst;
        let written = format!(r#""name": {}, "arguments": "#, json!(name));
        for char in written.chars().chain(['{']) {
            self.read_object(char);
        }
    }

    fn begin_object(&mut self, first: char) {
        self.object = CallObject::default();
        self.shape = Shape::Object;
        self.begun = None;
        self.place = Place::Object;
        self.read_object(first);
    }

    /// Reads within a call. Where its tag ends before its object does, as some models write, the object ends there.
    fn read_in_call(&mut self, char: char) {
        let is_cut = self.syntax == CallSyntax::Tags && char == '<' && self.object.may_end();
        if !is_cut {
            self.read_object(char);
            return;
        }
        self.read_object('}');
        self.read(char);
    }

    fn read_object(&mut self, char: char) {
        let mut scanned = self.object.push(char);
        let is_name_first = self.shape == Shape::NameFirst;
        if is_name_first && scanned == Scanned::More && self.object.has_whole_arguments() {
            scanned = self.object.push('}');
        }
        if let (None, Some(name)) = (self.begun, self.object.name.clone()) {
            if !self.names.contains(&name) {
                self.give_up_object();
                return;
            }
            self.begin_call(name);
        }
        self.tell_arguments();
        match scanned {
            Scanned::More => {}
            Scanned::Done => {
                if let Some(arguments) = self.object.other_arguments() {
                    self.add_arguments(arguments);
                }
                self.place = Place::AfterCall;
            }
            Scanned::Broken => self.give_up_object(),
        }
    }

    fn begin_call(&mut self, name: String) {
        let number = self.calls;
        self.calls += 1;
        self.begun = Some(number);
        self.held.clear();
        self.opened.clear();
        if self.counts(number) {
            self.parts.push(AnswerPart::CallBegins(number, name));
        }
    }

    /// True if a call is shown.
    fn counts(&self, number: u32) -> bool {
        self.several == Several::All || number == 0
    }

    fn tell_arguments(&mut self) {
        if self.begun.is_some() {
            let arguments = self.object.take_arguments();
            self.add_arguments(arguments);
        }
    }

    fn add_arguments(&mut self, more: String) {
        let Some(number) = self.begun.filter(|number| self.counts(*number)) else {
            return;
        };
        match self.parts.last_mut() {
            Some(AnswerPart::Arguments(of, text)) if *of == number => text.push_str(&more),
            _ if more.is_empty() => {}
            _ => self.parts.push(AnswerPart::Arguments(number, more)),
        }
    }

    /// Takes what was read of a call for text, unless it was shown as a call.
    fn give_up_object(&mut self) {
        let object = mem::take(&mut self.object);
        let is_shown = self.begun.take().is_some();
        self.place = match self.syntax {
            CallSyntax::Tags if is_shown => Place::AfterCall,
            CallSyntax::Bare => Place::PlainText,
            CallSyntax::Tags | CallSyntax::MarkedList | CallSyntax::MarkedName => Place::Text,
        };
        if !is_shown {
            self.held = mem::take(&mut self.opened) + &object.raw;
        }
    }

    /// Takes a mark behind which there is no call for text.
    fn unmark(&mut self) {
        self.held.insert_str(0, &mem::take(&mut self.opened));
        self.place = Place::Text;
    }

    fn read_after_call(&mut self, char: char) {
        match (self.syntax, char) {
            _ if char.is_ascii_whitespace() => {}
            // A brace too many.
            (CallSyntax::Tags, '}') if self.held.is_empty() => {}
            (CallSyntax::Tags, _) => self.read_call_end(char),
            (CallSyntax::MarkedList, ']') => self.place = Place::Text,
            (CallSyntax::MarkedList, ',') | (CallSyntax::Bare, ';' | ',') => {}
            (CallSyntax::MarkedList | CallSyntax::Bare, '{') => self.begin_object(char),
            (CallSyntax::Bare, _) => {
                self.held.push(char);
                self.place = Place::PlainText;
            }
            (CallSyntax::MarkedList | CallSyntax::MarkedName, _) => {
                self.place = Place::Text;
                self.read_text(char);
            }
        }
    }

    /// Reads the tag that ends a call.
    fn read_call_end(&mut self, char: char) {
        self.held.push(char);
        if self.held == CALL_END {
            self.held.clear();
            self.place = Place::Text;
        } else if !CALL_END.starts_with(&*self.held) {
            self.place = Place::Text;
        }
    }

    /// Shows the text that can be no beginning of a call, but for white space at its end.
    fn release_text(&mut self) {
        let clear = match self.place {
            Place::PlainText => self.held.len(),
            Place::Text => self.held.len() - self.held_back(),
            Place::Start | Place::Marked | Place::Name | Place::Object | Place::AfterCall => 0,
        };
        let held = self.held.split_off(clear);
        let shown = mem::replace(&mut self.held, held);
        self.show(shown);
    }

    /// Bytes at the end of the text that may belong to a mark, or be white space before one.
    fn held_back(&self) -> usize {
        let mark = self.mark();
        let lengths = (1..mark.len()).rev();
        let begun = lengths.filter(|length| mark.is_char_boundary(*length));
        let mut begun = begun.map(|length| &mark[..length]);
        let part = begun.find(|part| self.held.ends_with(part));
        let before = &self.held[..self.held.len() - part.map_or(0, str::len)];
        self.held.len() - before.trim_ascii_end().len()
    }

    fn show(&mut self, text: String) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::Text(shown)) => shown.push_str(&text),
            _ => self.parts.push(AnswerPart::Text(text)),
        }
    }
}

#[cfg(test)]
mod tests;
