//! The bytes of a single token, from the way in which its vocabulary writes it.

use tokenizers::{DecoderWrapper, Tokenizer};

/// The way in which a vocabulary writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// A character for each byte, as GPT-2 does.
    ByteLevel,
    /// As text, with `▁` for a space and `<0x0A>` for a byte that is no character, as `SentencePiece` does.
    Text,
}

/// The first of the characters for bytes that have none of their own.
const STAND_INS: u32 = 0x100;

impl Spelling {
    /// The way of a tokenizer's vocabulary. Its decoder tells: Llama 2 has the characters that stand for bytes as
    /// letters.
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        match tokenizer.get_decoder() {
            Some(decoder) if is_byte_level(decoder) => Self::ByteLevel,
            Some(_) | None => Self::Text,
        }
    }

    /// The bytes of a token that the vocabulary writes as `token`.
    pub(super) fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
                // What was added to a vocabulary is written as it is.
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::Text => match byte_in_brackets(token) {
                Some(byte) => vec![byte],
                None => token.replace('▁', " ").into_bytes(),
            },
        }
    }
}

/// Returns true if a decoder makes bytes of characters.
fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    if let DecoderWrapper::Sequence(sequence) = decoder {
        return sequence.get_decoders().iter().any(is_byte_level);
    }
    matches!(decoder, DecoderWrapper::ByteLevel(_))
}

/// The byte for which a character stands: its own where it is visible in Latin-1, and else the one of the
/// others whose turn it is.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => is_visible(byte).then_some(byte),
        Err(_) => {
            let place = code.checked_sub(STAND_INS)? as usize;
            (0..=u8::MAX).filter(|byte| !is_visible(*byte)).nth(place)
        }
    }
}

fn is_visible(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..)
}

fn byte_in_brackets(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_level_vocabulary_has_a_character_for_each_byte() {
        let bytes = |token| Spelling::ByteLevel.bytes(token);
        assert_eq!(bytes("Ġfour"), b" four");
        assert_eq!(bytes("Ċ"), b"\n");
        assert_eq!(bytes("Ã¤"), "ä".as_bytes());
        assert_eq!(bytes("âĤ"), [0xe2, 0x82]);
        assert_eq!(bytes("ł"), [0xa0]);
        // Added as text.
        assert_eq!(bytes("<|im_end|>▁"), "<|im_end|>▁".as_bytes());
        let all: Vec<u8> = (0..0x180_u32)
            .filter_map(|code| byte_of(char::from_u32(code)?))
            .collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..=u8::MAX).collect::<Vec<u8>>());
    }

    #[test]
    fn another_vocabulary_is_text_with_bytes_in_brackets() {
        let bytes = |token| Spelling::Text.bytes(token);
        assert_eq!(bytes("▁four"), b" four");
        assert_eq!(bytes("<0x0A>"), b"\n");
        assert_eq!(bytes("<0xZZ>"), b"<0xZZ>");
        assert_eq!(bytes("Ã"), "Ã".as_bytes());
    }
}
