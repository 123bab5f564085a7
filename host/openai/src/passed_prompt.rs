//! The prompt of a request that is passed on, measured by its bytes: it is not tokenised here.
//!
//! The bytes of a file say little of the tokens that a model takes it for: a picture of a megabyte has a thousand,
//! where as many bytes of text have three hundred times that. So each file counts as [`FILE_TOKENS`].

use std::iter::Peekable;

use memchr::memmem::{self, FindIter};
use pointsman_events::PromptBlocks;
use pointsman_http::fields::Fields;

use super::passing::are_several;
use super::prefix;

/// Bytes of JSON that are taken for a token of a prompt: the four characters that a token of English
/// text has on average.
pub(super) const TOKEN_BYTES: usize = 4;
/// Tokens that a file is taken for: models that see have 256 to 4096 for a picture of a million pixels.
pub(super) const FILE_TOKENS: usize = 1024;

/// Fields with the prompt of a request, of all the interfaces that are passed on, in the order in which
/// chat templates have them.
const PROMPT_FIELDS: [&str; 8] = [
    "tools",
    "system",
    "instructions",
    "messages",
    "prompt",
    "input",
    "query",
    "documents",
];

/// Bytes of base64 from which on the text of a field, or of a list, is a file.
const FIELD_BYTES_MIN: usize = 256;

/// The prompt of a request that is passed on.
#[derive(Debug)]
pub(super) struct PassedPrompt<'b> {
    /// Its fields, in the order of [`PROMPT_FIELDS`].
    parts: Vec<Part<'b>>,
    /// True if it is several prompts, each with an answer of its own.
    is_several: bool,
}

/// A field of a prompt.
#[derive(Debug)]
enum Part<'b> {
    /// So many numbers, which are tokens.
    Numbers(usize, &'b str),
    Pieces(Vec<Piece<'b>>),
}

/// A piece of a prompt in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'b> {
    Text(&'b str),
    /// The contents of a file, in base64.
    File(&'b str),
}

/// The form in which a file stands in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// After the head of an address that is its own contents (RFC 2397).
    Url,
    /// As the text of a field, as OpenAI has sound and Anthropic has pictures.
    Field,
    /// As one of the texts of a list, as Ollama has pictures.
    List,
}

/// The pieces of JSON, in their order.
struct Pieces<'b> {
    json: &'b str,
    /// The bytes that have been handed out.
    past: usize,
    marks: [(Mark, Peekable<FindIter<'b, 'static>>); 3],
    /// The start of the text that follows a file in a list; absent: none does.
    listed: Option<usize>,
    /// The file that follows the text which was handed out last.
    file: Option<&'b str>,
}

/// Tokens for which a file of so many bytes is taken, or any other body that is no JSON.
pub(super) fn tokens_of_file(bytes: usize) -> u32 {
    let tokens = bytes.div_ceil(TOKEN_BYTES).clamp(1, FILE_TOKENS);
    u32::try_from(tokens).expect("a small number")
}

// === impl PassedPrompt ===

impl<'b> PassedPrompt<'b> {
    /// The prompt in these fields of a request.
    pub(super) fn of(fields: &Fields<'b>) -> Self {
        let parts = PROMPT_FIELDS.iter().filter_map(|name| fields.get(name));
        let is_several = fields.get("prompt").is_some_and(are_several);
        Self {
            parts: parts.map(|part| Part::of(part.get())).collect(),
            is_several,
        }
    }

    /// Its tokens, as well as they can be told; at least 1.
    pub(super) fn tokens(&self) -> u32 {
        let tokens: usize = self.parts.iter().map(Part::tokens).sum();
        u32::try_from(tokens).unwrap_or(u32::MAX).max(1)
    }

    /// Its full blocks, as its bytes are: what templates put first comes first. They say nothing but that one
    /// prompt begins as another did.
    pub(super) fn blocks(&self, sharing: prefix::Sharing<'_>) -> PromptBlocks {
        let pieces = self.parts.iter().flat_map(Part::pieces);
        prefix::blocks_of_text(pieces, TOKEN_BYTES, sharing)
    }

    /// False if its bytes say nothing of the length that a context has to have: files are in it, or it is several.
    pub(super) fn is_measured(&self) -> bool {
        let mut pieces = self.parts.iter().flat_map(Part::pieces);
        !self.is_several && !pieces.any(|piece| matches!(piece, Piece::File(_)))
    }
}

// === impl Part ===

impl<'b> Part<'b> {
    fn of(json: &'b str) -> Self {
        let inner = json.trim_start_matches(['[', ' ', '\n', '\t', '\r']);
        let is_list = inner.len() < json.len();
        if is_list && inner.starts_with(|c: char| c.is_ascii_digit()) {
            let commas = memchr::memchr_iter(b',', json.as_bytes());
            return Self::Numbers(commas.count() + 1, json);
        }
        Self::Pieces(Pieces::of(json).collect())
    }

    fn tokens(&self) -> usize {
        let pieces = match self {
            Self::Numbers(count, _) => return *count,
            Self::Pieces(pieces) => pieces.iter(),
        };
        let bytes = pieces.map(|piece| match piece {
            Piece::Text(text) => text.len(),
            Piece::File(_) => FILE_TOKENS * TOKEN_BYTES,
        });
        bytes.sum::<usize>().div_ceil(TOKEN_BYTES)
    }

    fn pieces(&self) -> impl Iterator<Item = Piece<'b>> {
        let (numbers, pieces) = match self {
            Self::Numbers(_, json) => (Some(Piece::Text(json)), &[][..]),
            Self::Pieces(pieces) => (None, &pieces[..]),
        };
        numbers.into_iter().chain(pieces.iter().copied())
    }
}

// === impl Mark ===

impl Mark {
    /// The bytes before the contents of such a file, or the name of its field.
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Url => b";base64,",
            Self::Field => b"\"data\"",
            Self::List => b"\"images\"",
        }
    }
}

// === impl Pieces ===

impl<'b> Pieces<'b> {
    fn of(json: &'b str) -> Self {
        let found = |mark: Mark| memmem::find_iter(json.as_bytes(), mark.bytes()).peekable();
        Self {
            json,
            past: 0,
            marks: [Mark::Url, Mark::Field, Mark::List].map(|mark| (mark, found(mark))),
            listed: None,
            file: None,
        }
    }

    /// The start of the next file and its contents.
    fn next_file(&mut self) -> Option<(usize, &'b str)> {
        loop {
            let (mark, start) = match self.listed.take() {
                Some(start) => (Mark::List, Some(start)),
                None => self.next_mark()?,
            };
            let Some(start) = start.filter(|start| *start >= self.past) else {
                continue;
            };
            let rest = &self.json.as_bytes()[start..];
            let length = memchr::memchr(b'"', rest).unwrap_or(rest.len());
            let end = start + length;
            let contents = &self.json[start..end];
            if mark == Mark::Url || is_file(contents) {
                self.listed = match mark {
                    Mark::Url | Mark::Field => None,
                    Mark::List => start_of_next(self.json, end),
                };
                return Some((start, contents));
            }
        }
    }

    /// The next mark, and the start of what follows it if that is a text.
    fn next_mark(&mut self) -> Option<(Mark, Option<usize>)> {
        let next = self.marks.iter_mut().filter_map(|(mark, found)| {
            let at = *found.peek()?;
            Some((at, *mark, found))
        });
        let (at, mark, found) = next.min_by_key(|(at, ..)| *at)?;
        found.next();
        let after = at + mark.bytes().len();
        let start = match mark {
            Mark::Url => Some(after),
            Mark::Field => start_of_text(self.json, after, ""),
            Mark::List => start_of_text(self.json, after, "["),
        };
        Some((mark, start))
    }
}

impl<'b> Iterator for Pieces<'b> {
    type Item = Piece<'b>;

    fn next(&mut self) -> Option<Piece<'b>> {
        if let Some(file) = self.file.take() {
            return Some(Piece::File(file));
        }
        let from = self.past;
        let text = match self.next_file() {
            Some((start, contents)) => {
                self.file = Some(contents);
                self.past = start + contents.len();
                &self.json[from..start]
            }
            None => {
                self.past = self.json.len();
                &self.json[from..]
            }
        };
        (!text.is_empty()).then_some(Piece::Text(text))
    }
}

/// The start of the text that a field has whose name ends here, behind what opens its value; absent: it has something
/// else.
fn start_of_text(json: &str, name_end: usize, opening: &str) -> Option<usize> {
    let value = json[name_end..].trim_start().strip_prefix(':')?;
    let value = value.trim_start().strip_prefix(opening)?;
    let text = value.trim_start().strip_prefix('"')?;
    Some(json.len() - text.len())
}

/// The start of the text that follows in a list one that ends here; absent: none does.
fn start_of_next(json: &str, text_end: usize) -> Option<usize> {
    let rest = json[text_end..].strip_prefix('"')?.trim_start();
    let text = rest.strip_prefix(',')?.trim_start().strip_prefix('"')?;
    Some(json.len() - text.len())
}

/// True for base64 of some length.
fn is_file(contents: &str) -> bool {
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_\\".contains(byte);
    let head = contents.as_bytes().get(..FIELD_BYTES_MIN);
    head.is_some_and(|head| head.iter().all(is_base64))
}

#[cfg(test)]
mod tests {
    use pointsman_http::PrefixCache;

    use super::*;

    fn measured(body: &str) -> (u32, bool) {
        let fields = Fields::parse(body.as_bytes()).unwrap();
        let prompt = PassedPrompt::of(&fields);
        (prompt.tokens(), prompt.is_measured())
    }

    #[test]
    fn a_prompt_is_measured_by_its_bytes_or_counted_if_it_is_tokens() {
        for (body, tokens) in [
            (r#"{"prompt": "12345678901234"}"#, 4),
            (r#"{"prompt": [1, 2, 3]}"#, 3),
            (r#"{"input": [[1, 2], [3]]}"#, 3),
            (r#"{"input": ["some", "text"]}"#, 4),
            (
                r#"{"messages": [{"role": "user", "content": "hello"}], "stream": true}"#,
                10,
            ),
            ("{}", 1),
        ] {
            assert_eq!(measured(body).0, tokens, "{body}");
        }
    }

    #[test]
    fn bytes_of_files_and_of_several_prompts_measure_no_prompt() {
        let sound = "UklG".repeat(64);
        for (body, expected) in [
            (r#"{"prompt": "text"}"#, true),
            (r#"{"prompt": [ 1, 2]}"#, true),
            (r#"{"prompt": ["one", "two"]}"#, false),
            (r#"{"prompt": [[1, 2], [3]]}"#, false),
            (r#"{"messages": [{"content": "base64"}]}"#, true),
            (
                r#"{"messages": [{"content": [{"image_url": {"url": "data:image/png;base64,AAAA"}}]}]}"#,
                false,
            ),
            (
                r#"{"messages": [{"content": [{"input_audio": {"data" : "SOUND"}}]}]}"#,
                false,
            ),
            (
                r#"{"messages": [{"arguments": {"data": "a few words"}}, {"data": 5}]}"#,
                true,
            ),
        ] {
            let body = body.replace("SOUND", &sound);
            assert_eq!(measured(&body).1, expected, "{body}");
        }
    }

    /// Three pictures, of which one is as Anthropic has them, between texts.
    #[test]
    fn a_file_counts_as_so_many_tokens_whatever_its_bytes() {
        let picture = "iVBO".repeat(500_000);
        let urls = format!(r#"[{{"url":"data:image/png;base64,{picture}"}},"twelve bytes","#);
        let body = format!(
            r#"{{"messages":{urls}{{"data":"{picture}"}},{{"url":"data:image/png;base64,QQ=="}}]}}"#
        );
        let (tokens, is_measured) = measured(&body);
        assert!((3 * 1024..3 * 1024 + 40).contains(&tokens), "{tokens}");
        assert!(!is_measured);
        let fields = Fields::parse(body.as_bytes()).unwrap();
        let prompt = PassedPrompt::of(&fields);
        let whole: String = prompt.parts[0]
            .pieces()
            .map(|piece| match piece {
                Piece::Text(text) | Piece::File(text) => text,
            })
            .collect();
        assert_eq!(
            whole,
            fields.get("messages").unwrap().get(),
            "nothing is left out"
        );
        let of = |body: &str| {
            let fields = Fields::parse(body.as_bytes()).unwrap();
            PassedPrompt::of(&fields)
                .blocks((PrefixCache::Shared, "a"))
                .hashes
        };
        let hashes = of(&body);
        assert_eq!(hashes.len(), 3 * 16, "64 tokens a block, and little text");
        assert_eq!(of(&body), hashes);
        let other = of(&body.replacen("iVBOiVBO", "iVBOiVBP", 1));
        assert!(hashes.iter().zip(&other).all(|(one, other)| one != other));
        // As Ollama's own interface has them.
        let lists = format!(
            r#"{{"messages":[{{"content":"one","images":["{picture}", "{picture}"]}},{{"images" : [ "{picture}" ]}}]}}"#
        );
        let (tokens, is_measured) = measured(&lists);
        assert!((3 * 1024..3 * 1024 + 40).contains(&tokens), "{tokens}");
        assert!(!is_measured);
    }
}
