//! JSON as templates of chats have it written, which were made for Python's `json.dumps`.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// The form in which Python writes JSON.
struct PythonJson {
    /// Spaces before a value, for each list and object around it; absent: all is one line.
    indent: Option<usize>,
    between_values: String,
    after_name: String,
    beyond_ascii: BeyondAscii,
    /// Lists and objects around what comes next.
    depth: usize,
    /// True if the list or object that ends next has a value.
    is_filled: bool,
}

/// The form of characters beyond ASCII.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BeyondAscii {
    Plain,
    Escaped,
}

/// The filter `tojson` of transformers: the template language's own escapes characters that have a meaning in HTML.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let sorts_names: Option<bool> = options.get("sort_keys")?;
    let format = PythonJson::take(&options)?;
    options.assert_all_used()?;
    let written = match sorts_names {
        Some(true) => sorted(value).and_then(|sorted| write(&sorted, format)),
        Some(false) | None => write(value, format),
    };
    written.map_err(|error| {
        Error::new(ErrorKind::BadSerialization, "no JSON for this value").with_source(error)
    })
}

/// A value whose objects have their names in order.
fn sorted(value: &Value) -> serde_json::Result<serde_json::Value> {
    let mut sorted = serde_json::to_value(value)?;
    sorted.sort_all_objects();
    Ok(sorted)
}

fn write(value: &impl Serialize, format: PythonJson) -> serde_json::Result<String> {
    let mut json = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut json, format))?;
    Ok(String::from_utf8(json).expect("JSON is UTF-8"))
}

// === impl PythonJson ===

impl PythonJson {
    /// Takes the form out of a filter's options: by default `[1, 2]` and `{"a": 1}`.
    fn take(options: &Kwargs) -> Result<Self, Error> {
        let indent: Option<usize> = options.get("indent")?;
        let separators: Option<Vec<String>> = options.get("separators")?;
        let [between_values, after_name] = match separators.map(<[String; 2]>::try_from) {
            Some(Ok(separators)) => separators,
            None if indent.is_some() => [",", ": "].map(str::to_owned),
            None => [", ", ": "].map(str::to_owned),
            Some(Err(separators)) => {
                let why = format!("separators are two, not {}", separators.len());
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            }
        };
        let beyond_ascii = match options.get("ensure_ascii")? {
            Some(true) => BeyondAscii::Escaped,
            Some(false) | None => BeyondAscii::Plain,
        };
        Ok(Self {
            indent,
            between_values,
            after_name,
            beyond_ascii,
            depth: 0,
            is_filled: false,
        })
    }

    fn begin(&mut self, out: &mut (impl ?Sized + Write), bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_filled = false;
        out.write_all(bracket)
    }

    fn end(&mut self, out: &mut (impl ?Sized + Write), bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.is_filled {
            self.begin_line(out)?;
        }
        out.write_all(bracket)
    }

    fn begin_line(&self, out: &mut (impl ?Sized + Write)) -> io::Result<()> {
        match self.indent {
            Some(width) => write!(out, "\n{:1$}", "", width * self.depth),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonJson {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.between_values.as_bytes())?;
        }
        self.begin_line(out)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_filled = true;
        Ok(())
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.after_name.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end_array_value(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if self.beyond_ascii == BeyondAscii::Plain || fragment.is_ascii() {
            return out.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            if character.is_ascii() {
                write!(out, "{character}")?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    use super::*;

    /// The expectations are of Python 3.11.
    #[test]
    fn json_has_the_form_that_a_template_asks_for() {
        let mut environment = Environment::new();
        environment.add_filter("tojson", to_json);
        let written = |options: &str| {
            let value = "{'b': [1, {}], 'a': {'ü𝄞': []}}";
            environment.render_str(
                &format!("{{{{ {value} | tojson({options}) }}}}"),
                context! {},
            )
        };
        for (options, expected) in [
            ("", r#"{"b": [1, {}], "a": {"ü𝄞": []}}"#),
            (
                "indent=2",
                "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": {\n    \"ü𝄞\": []\n  }\n}",
            ),
            (
                "indent=0",
                "{\n\"b\": [\n1,\n{}\n],\n\"a\": {\n\"ü𝄞\": []\n}\n}",
            ),
            (
                "ensure_ascii=True",
                r#"{"b": [1, {}], "a": {"\u00fc\ud834\udd1e": []}}"#,
            ),
            ("ensure_ascii=False", r#"{"b": [1, {}], "a": {"ü𝄞": []}}"#),
            ("separators=(',', ':')", r#"{"b":[1,{}],"a":{"ü𝄞":[]}}"#),
            ("sort_keys=True", r#"{"a": {"ü𝄞": []}, "b": [1, {}]}"#),
        ] {
            assert_eq!(written(options).unwrap(), expected, "{options}");
        }
        for (options, why) in [
            ("cls=1", "cls"),
            ("separators=[',']", "separators are two, not 1"),
        ] {
            let refused = written(options).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
