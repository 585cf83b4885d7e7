//! Reading the text form: a cursor over a text that knows its line.
//!
//! Blanks, line ends and comments (`;` to the end of the line) separate tokens and mean nothing else.

use crate::base::{DType, Error, ErrorKind, Result, Shape, Type};

/// A position in a text.
#[derive(Clone)]
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of `text`.
    pub fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text, at: 0 }
    }

    /// An error at the end of what was read.
    pub fn error(&self, detail: impl Into<String>) -> Error {
        self.error_at(self.at, detail.into())
    }

    fn error_at(&self, at: usize, detail: String) -> Error {
        let line = 1 + self.text[..at].bytes().filter(|&b| b == b'\n').count();
        ErrorKind::Parse { line, detail }.into()
    }

    /// What follows, without blanks and comments before it.
    fn rest(&self) -> &'a str {
        let mut rest = self.text[self.at..].trim_start();
        while rest.starts_with(';') {
            rest = rest[rest.find('\n').unwrap_or(rest.len())..].trim_start();
        }
        rest
    }

    /// Passes the first `len` bytes of `rest`.
    fn pass(&mut self, rest: &'a str, len: usize) -> &'a str {
        self.at = self.text.len() - rest.len() + len;
        &rest[..len]
    }

    /// Whether nothing is left.
    pub fn at_end(&self) -> bool {
        self.rest().is_empty()
    }

    /// Whether `token` is next.
    pub fn sees(&self, token: &str) -> bool {
        // A word ends where the word in the text ends.
        let whole = |after: &str| !token.ends_with(is_word) || !after.starts_with(is_word);
        self.rest().strip_prefix(token).is_some_and(whole)
    }

    /// Passes `token` if it is next.
    pub fn eat(&mut self, token: &str) -> bool {
        let seen = self.sees(token);
        if seen {
            self.pass(self.rest(), token.len());
        }
        seen
    }

    /// Passes `token`, which must be next.
    pub fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("`{token}`"))) }
    }

    /// The error that something else was expected next.
    pub fn expected(&self, what: &str) -> Error {
        let rest = self.rest();
        let got: String = rest.lines().next().unwrap_or("").chars().take(24).collect();
        let got = if got.is_empty() { "the end".to_string() } else { format!("`{got}`") };
        self.error_at(self.text.len() - rest.len(), format!("expected {what}, got {got}"))
    }

    /// A word: letters, digits, `_` and `.`.
    pub fn word(&mut self, what: &str) -> Result<&'a str> {
        let rest = self.rest();
        match word_len(rest) {
            0 => Err(self.expected(what)),
            n => Ok(self.pass(rest, n)),
        }
    }

    /// A number, with its sign.
    pub fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        let rest = self.rest();
        let sign = rest.starts_with('-') as usize;
        let end = sign + word_len(&rest[sign..]);
        let value = rest[..end].parse().map_err(|_| self.expected(what))?;
        self.pass(rest, end);
        Ok(value)
    }

    /// `open`, items separated by commas (one may follow the last), `close`.
    pub fn list<T>(&mut self, open: &str, close: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.expect(open)?;
        let mut out = Vec::new();
        while !self.eat(close) {
            out.push(item(self)?);
            if !self.eat(",") {
                self.expect(close)?;
                break;
            }
        }
        Ok(out)
    }

    /// A dtype.
    pub fn dtype(&mut self) -> Result<DType> {
        let rest = self.rest();
        let word = &rest[..word_len(rest)];
        let dtype = DType::from_name(word).ok_or_else(|| self.expected(&format!("a dtype ({})", DType::names())))?;
        self.pass(rest, word.len());
        Ok(dtype)
    }

    /// A type: `f32[32,784]`.
    pub fn ty(&mut self) -> Result<Type> {
        let dtype = self.dtype()?;
        let dims = self.list("[", "]", |c| c.number::<usize>("a length"))?;
        let shape = Shape::new(&dims).map_err(|e| self.error(e.kind().to_string()))?;
        Ok(Type::new(dtype, shape))
    }

    /// A text in double quotes, without quotes or line ends inside.
    pub fn quoted(&mut self) -> Result<&'a str> {
        let rest = self.rest();
        let inside = rest.strip_prefix('"').and_then(|r| r.split(['"', '\n']).next());
        match inside {
            Some(s) if rest[1 + s.len()..].starts_with('"') => {
                self.pass(rest, s.len() + 2);
                Ok(s)
            }
            _ => Err(self.expected("a text in double quotes")),
        }
    }

    /// A word with the parentheses that may follow it, as one text: `sum(axes=[0,1])`.
    pub fn call(&mut self, what: &str) -> Result<&'a str> {
        let rest = self.rest();
        let word = self.word(what)?.len();
        let open = self.rest();
        if !open.starts_with('(') {
            return Ok(&rest[..word]);
        }
        let end = matching(open).ok_or_else(|| self.error("a parenthesis is not closed"))?;
        Ok(self.pass(rest, rest.len() - open.len() + end))
    }

    /// A block in braces, as the text with its braces.
    pub fn block(&mut self) -> Result<&'a str> {
        let rest = self.rest();
        if !rest.starts_with('{') {
            return Err(self.expected("`{`"));
        }
        let end = matching(rest).ok_or_else(|| self.error("a brace is not closed"))?;
        Ok(self.pass(rest, end))
    }
}

/// Length of the word that `text` starts with.
fn word_len(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// Length of the bracketed text that `text` starts with. Comments may hold any bracket.
fn matching(text: &str) -> Option<usize> {
    let mut open = Vec::new();
    let mut comment = false;
    for (i, c) in text.char_indices() {
        match c {
            '\n' => comment = false,
            ';' => comment = true,
            _ if comment => {}
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' => {
                if open.pop() != Some(c) {
                    return None;
                }
                if open.is_empty() {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_comments() {
        let mut c = Cursor::new("graph ; (a note {\n @f(-3, 4,) f32[2, 3] \"a b\" sum(axes=[0,1]) { x { } } ");
        assert!(!c.sees("gra"));
        c.expect("graph").unwrap();
        c.expect("@").unwrap();
        assert_eq!(c.word("a name").unwrap(), "f");
        assert_eq!(c.list("(", ")", |c| c.number::<i64>("a number")).unwrap(), [-3, 4]);
        assert_eq!(c.ty().unwrap().to_string(), "f32[2,3]");
        assert_eq!(c.quoted().unwrap(), "a b");
        assert_eq!(c.call("an op").unwrap(), "sum(axes=[0,1])");
        assert_eq!(c.block().unwrap(), "{ x { } }");
        assert!(c.at_end());
    }

    #[test]
    fn errors_name_the_line() {
        let mut c = Cursor::new("a\n ; b\n  f99[1]");
        c.expect("a").unwrap();
        let e = c.ty().unwrap_err();
        assert_eq!(
            e.to_string(),
            "parse error in line 3: expected a dtype (bool, u8, i8, i32, i64, f16, bf16, f32, f64), got `f99[1]`"
        );
        let mut c = Cursor::new("");
        assert_eq!(c.word("a name").unwrap_err().to_string(), "parse error in line 1: expected a name, got the end");
        assert!(Cursor::new("{ (").block().is_err());
        assert!(Cursor::new("\"a\n\"").quoted().is_err());
        assert!(Cursor::new("99999999999999999999").number::<usize>("a length").is_err());
    }
}
