//! Writes JSON. Commas are its business, balance is the caller's: each `open` has its `close`.
//!
//! Not here: reading it; what is written.

use std::fmt::Write;

#[derive(Default)]
pub struct Json {
    out: String,
    /// Something stands before the next value in its object or array.
    follows: bool,
}

impl Json {
    pub fn finish(self) -> String {
        self.out
    }

    /// Begins an object or array: as an element, or as the field `name` if it is not empty.
    pub fn open(&mut self, name: &str, bracket: char) {
        self.lead(name);
        self.out.push(bracket);
        self.follows = false;
    }

    pub fn close(&mut self, bracket: char) {
        self.out.push(bracket);
        self.follows = true;
    }

    pub fn number(&mut self, name: &str, value: u64) {
        self.lead(name);
        // Writing to a String cannot fail.
        let _ = write!(self.out, "{value}");
    }

    /// `null` if there is none, or no number.
    pub fn float(&mut self, name: &str, value: Option<f64>) {
        self.lead(name);
        let _ = match value.filter(|value| value.is_finite()) {
            Some(value) => write!(self.out, "{:.3}", value),
            None => write!(self.out, "null"),
        };
    }

    pub fn maybe(&mut self, name: &str, value: Option<u64>) {
        self.lead(name);
        let _ = match value {
            Some(value) => write!(self.out, "{value}"),
            None => write!(self.out, "null"),
        };
    }

    pub fn boolean(&mut self, name: &str, value: bool) {
        self.lead(name);
        self.out.push_str(if value { "true" } else { "false" });
    }

    pub fn text(&mut self, name: &str, value: &str) {
        self.lead(name);
        self.quoted(value);
    }

    fn lead(&mut self, name: &str) {
        if self.follows {
            self.out.push(',');
        }
        if !name.is_empty() {
            self.quoted(name);
            self.out.push(':');
        }
        self.follows = true;
    }

    fn quoted(&mut self, text: &str) {
        self.out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                // `<` too, so that no text ends a script that it is put into.
                '\0'..=' ' | '<' | '\u{7f}'..='\u{9f}' if letter != ' ' => {
                    let _ = write!(self.out, "\\u{:04x}", letter as u32);
                }
                _ => self.out.push(letter),
            }
        }
        self.out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_written_with_commas_where_they_belong_and_texts_escaped() {
        let mut json = Json::default();
        json.open("", '{');
        json.number("a", 1);
        json.open("b", '[');
        json.text("", "x\"\\\n<");
        json.float("", Some(0.5));
        json.float("", Some(f64::NAN));
        json.open("", '{');
        json.close('}');
        json.close(']');
        json.boolean("c", true);
        json.maybe("d", None);
        json.close('}');
        let text = json.finish();
        let expected = r#"{"a":1,"b":["x\"\\\u000a\u003c",0.500,null,{}],"c":true,"d":null}"#;
        assert_eq!(text, expected);
    }
}
