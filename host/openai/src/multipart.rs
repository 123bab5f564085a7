//! Forms with files (`multipart/form-data`, RFC 7578), as sounds to transcribe and pictures to change are sent:
//! one short field is read, and no file.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use memchr::memmem;

/// The most bytes of a field's value.
const VALUE_BYTES_MAX: usize = 1 << 10;
/// The most headers of a part.
const HEADERS_MAX: usize = 16;

/// The value of the field `name` in a body that these headers say is a form; absent: it is none, or has no such
/// field.
pub(super) fn field(headers: &HeaderMap, body: &[u8], name: &str) -> Option<String> {
    let boundary = boundary(headers.get(CONTENT_TYPE)?.to_str().ok()?)?;
    let delimiter = format!("--{boundary}");
    let finder = memmem::Finder::new(&delimiter);
    let mut starts = finder.find_iter(body).map(|at| at + delimiter.len());
    let mut start = starts.next()?;
    for next in starts {
        let part = &body[start..next - delimiter.len()];
        if let Some(value) = value_of(part, name) {
            return Some(value);
        }
        start = next;
    }
    None
}

/// The boundary in a content type; absent: it is no form.
fn boundary(content_type: &str) -> Option<&str> {
    let mut pieces = content_type.split(';').map(str::trim);
    let is_form = pieces.next()?.eq_ignore_ascii_case("multipart/form-data");
    let boundary = parameter(pieces, "boundary")?;
    (is_form && !boundary.is_empty()).then_some(boundary)
}

/// The value of a part, which begins after its delimiter, if it is the field `name`.
fn value_of(part: &[u8], name: &str) -> Option<String> {
    let part = part.strip_prefix(b"\r\n")?.strip_suffix(b"\r\n")?;
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let parsed = httparse::parse_headers(part, &mut headers).ok()?;
    let httparse::Status::Complete((value_start, headers)) = parsed else {
        return None;
    };
    let is_disposition =
        |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("content-disposition");
    let disposition = headers.iter().find(is_disposition)?;
    let disposition = str::from_utf8(disposition.value).ok()?;
    let named = parameter(disposition.split(';').map(str::trim), "name")?;
    let value = &part[value_start..];
    if named != name || value.len() > VALUE_BYTES_MAX {
        return None;
    }
    str::from_utf8(value).ok().map(str::to_owned)
}

/// The value of a parameter of a header, without quotes.
fn parameter<'h>(mut pieces: impl Iterator<Item = &'h str>, name: &str) -> Option<&'h str> {
    let value = pieces.find_map(|piece| {
        let (key, value) = piece.split_once('=')?;
        key.trim().eq_ignore_ascii_case(name).then_some(value)
    })?;
    Some(value.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=xyz";

    fn model(content_type: &'static str, body: &str) -> Option<String> {
        let content_type = HeaderValue::from_static(content_type);
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type)]);
        field(&headers, body.as_bytes(), "model")
    }

    fn part(headers: &str, value: &str) -> String {
        format!("--xyz\r\n{headers}\r\n\r\n{value}\r\n")
    }

    #[test]
    fn a_field_is_found_before_a_file_and_after_it() {
        let file = part(
            "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/wav",
            "RIFF\r\n--xy\r\n\u{0}",
        );
        let of = |name: &str| {
            part(
                &format!("Content-Disposition: form-data; name=\"{name}\""),
                "whisper",
            )
        };
        let named = of("model");
        for body in [
            format!("{named}{file}"),
            format!("preamble\r\n{file}{named}"),
        ] {
            let whole = format!("{body}--xyz--\r\n");
            assert_eq!(model(TYPE, &whole).as_deref(), Some("whisper"));
            let quoted = "Multipart/Form-Data; charset=utf-8; boundary=\"xyz\"";
            assert_eq!(model(quoted, &whole).as_deref(), Some("whisper"));
            assert_eq!(model("application/json", &whole), None);
            assert_eq!(model("multipart/form-data", &whole), None);
        }
        let other = of("language");
        assert_eq!(model(TYPE, &format!("{other}{file}--xyz--\r\n")), None);
        // What breaks off has no field that is whole.
        assert_eq!(model(TYPE, &named), None);
        assert_eq!(model(TYPE, ""), None);
        assert_eq!(model(TYPE, "--xyz--xyz--xyz"), None);
        let long = part(
            "content-disposition: form-data; name=model",
            &"m".repeat(1025),
        );
        assert_eq!(model(TYPE, &format!("{long}--xyz--")), None);
    }
}
