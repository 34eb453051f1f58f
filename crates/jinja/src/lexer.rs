//! Template source to tokens, by the rules of jinja2's lexer with `trim_blocks` and `lstrip_blocks`.

use crate::error::{Error, Result};
use crate::text::is_space;
use std::rc::Rc;

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    /// Text outside of tags.
    Data(Rc<str>),
    /// `{{`
    VariableBegin,
    /// `}}`
    VariableEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    /// An identifier or keyword.
    Name(Rc<str>),
    /// A string literal, unescaped.
    Str(Rc<str>),
    /// An integer literal.
    Int(i64),
    /// A float literal.
    Float(f64),
    /// An operator or a bracket.
    Op(&'static str),
    /// The end of the source.
    End,
}

/// Operators, longer ones before their prefixes.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

/// Tokens of `source`, each with its line.
pub fn tokens(source: &str) -> Result<Vec<(Token, usize)>> {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    let mut lexer = Lexer { text: &text, at: 0, line: 1, line_start: true, out: Vec::new() };
    while lexer.at < text.len() {
        lexer.root()?;
    }
    lexer.push(Token::End);
    Ok(lexer.out)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    /// True if the tag before ended with a newline, or nothing came before.
    line_start: bool,
    out: Vec<(Token, usize)>,
}

/// `-` or `+` beside a delimiter.
#[derive(Clone, Copy, PartialEq)]
enum Sign {
    None,
    Minus,
    Plus,
}

fn sign(rest: &str) -> (Sign, usize) {
    match rest.as_bytes().first() {
        Some(b'-') => (Sign::Minus, 1),
        Some(b'+') => (Sign::Plus, 1),
        _ => (Sign::None, 0),
    }
}

/// Bytes of leading white space.
fn space(text: &str) -> usize {
    text.len() - text.trim_start_matches(is_space).len()
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn push(&mut self, token: Token) {
        self.out.push((token, self.line));
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::at(self.line, what))
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.text[self.at..self.at + bytes];
        self.line += passed.bytes().filter(|b| *b == b'\n').count();
        self.line_start = passed.ends_with('\n');
        self.at += bytes;
    }

    /// Text up to the next tag, then the tag.
    fn root(&mut self) -> Result<()> {
        let rest = self.rest();
        let begins = |at: &usize| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
        let Some(found) = rest.match_indices('{').map(|(at, _)| at).find(begins) else {
            self.data(rest, Sign::None, false);
            self.advance(rest.len());
            return Ok(());
        };
        let kind = rest.as_bytes()[found + 1];
        let (mark, width) = sign(&rest[found + 2..]);
        self.data(&rest[..found], mark, kind != b'{');
        self.advance(found);
        let line_start = self.line_start;
        self.advance(2 + width);
        self.line_start = line_start;
        match kind {
            b'#' => self.comment(),
            b'{' => self.tag(Token::VariableBegin),
            _ => match self.raw_begin() {
                Some(length) => {
                    self.advance(length);
                    self.raw()
                }
                None => self.tag(Token::BlockBegin),
            },
        }
    }

    /// Text before a tag, stripped as the tag's sign and `lstrip_blocks` say.
    fn data(&mut self, text: &'a str, mark: Sign, is_block: bool) {
        let text = match mark {
            Sign::Minus => text.trim_end_matches(is_space),
            Sign::None if is_block => {
                let start = text.rfind('\n').map_or(0, |at| at + 1);
                let blank = text[start..].chars().all(is_space);
                if blank && (start > 0 || self.line_start) { &text[..start] } else { text }
            }
            _ => text,
        };
        if !text.is_empty() {
            self.push(Token::Data(text.into()));
        }
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else {
            return self.fail("a comment has no end (#})");
        };
        let before = self.rest()[..end].chars().next_back();
        self.advance(end + 2);
        self.after_tag(before == Some('-'), before == Some('+'));
        Ok(())
    }

    /// White space after a tag that ended with `-`, or the newline that `trim_blocks` takes.
    fn after_tag(&mut self, minus: bool, plus: bool) {
        let skip = if minus { space(self.rest()) } else { usize::from(!plus && self.rest().starts_with('\n')) };
        if skip > 0 {
            self.advance(skip);
        } else {
            self.line_start = false;
        }
    }

    /// The length of ` raw %}`, if that is what follows.
    fn raw_begin(&self) -> Option<usize> {
        let rest = self.rest();
        let word = rest.trim_start_matches(is_space).strip_prefix("raw")?;
        let end = word.trim_start_matches(is_space);
        let after = match end.strip_prefix("-%}") {
            Some(after) => after.trim_start_matches(is_space),
            None => end.strip_prefix("%}")?,
        };
        Some(rest.len() - after.len())
    }

    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        for (found, _) in rest.match_indices("{%") {
            let (mark, width) = sign(&rest[found + 2..]);
            let Some(word) = rest[found + 2 + width..].trim_start_matches(is_space).strip_prefix("endraw") else {
                continue;
            };
            let end = word.trim_start_matches(is_space);
            let (after, minus, plus) = match (end.strip_prefix("%}"), end.strip_prefix("-%}"), end.strip_prefix("+%}"))
            {
                (Some(after), ..) => (after, false, false),
                (_, Some(after), _) => (after, true, false),
                (.., Some(after)) => (after, false, true),
                _ => continue,
            };
            self.data(&rest[..found], mark, true);
            self.advance(rest.len() - after.len());
            self.after_tag(minus, plus);
            return Ok(());
        }
        self.fail("a raw block has no end ({% endraw %})")
    }

    /// The tokens of a tag, to its end.
    fn tag(&mut self, begin: Token) -> Result<()> {
        let (plain, minus, end) = match begin {
            Token::VariableBegin => ("}}", "-}}", Token::VariableEnd),
            _ => ("%}", "-%}", Token::BlockEnd),
        };
        let is_block = end == Token::BlockEnd;
        self.push(begin);
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let skip = space(self.rest());
            self.advance(skip);
            let rest = self.rest();
            if rest.is_empty() {
                return self.fail(format!("a tag has no end ({plain})"));
            }
            if open.is_empty() {
                if rest.starts_with(minus) {
                    self.push(end);
                    self.advance(minus.len());
                    self.after_tag(true, false);
                    return Ok(());
                }
                if is_block && rest.starts_with("+%}") {
                    self.push(end);
                    self.advance(3);
                    self.line_start = false;
                    return Ok(());
                }
                if rest.starts_with(plain) {
                    self.push(end);
                    self.advance(2);
                    self.after_tag(false, !is_block);
                    return Ok(());
                }
            }
            self.token(&mut open)?;
        }
    }

    fn token(&mut self, open: &mut Vec<&'static str>) -> Result<()> {
        let rest = self.rest();
        let first = rest.chars().next().unwrap_or_default();
        if first.is_ascii_digit() {
            return self.number();
        }
        if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            self.push(Token::Name(rest[..end].into()));
            self.advance(end);
            return Ok(());
        }
        if first == '\'' || first == '"' {
            return self.string(first);
        }
        let Some(op) = OPERATORS.into_iter().find(|op| rest.starts_with(op)) else {
            return self.fail(format!("unexpected character {first:?}"));
        };
        match op {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" if open.pop() != Some(op) => return self.fail(format!("unexpected '{op}'")),
            _ => {}
        }
        self.push(Token::Op(op));
        self.advance(op.len());
        Ok(())
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let digits = |from: usize, accept: fn(char) -> bool| {
            rest[from..].find(|c: char| !(accept(c) || c == '_')).map_or(rest.len(), |n| from + n)
        };
        let lower = rest.get(..2).unwrap_or_default().to_ascii_lowercase();
        let (radix, accept): (u32, fn(char) -> bool) = match lower.as_str() {
            "0x" => (16, |c| c.is_ascii_hexdigit()),
            "0o" => (8, |c| c.is_digit(8)),
            "0b" => (2, |c| c.is_digit(2)),
            _ => (10, |c| c.is_ascii_digit()),
        };
        if radix != 10 {
            let end = digits(2, accept);
            let value = i64::from_str_radix(&rest[2..end].replace('_', ""), radix);
            let Ok(value) = value else { return self.fail(format!("{} is no number", &rest[..end])) };
            self.push(Token::Int(value));
            self.advance(end);
            return Ok(());
        }
        let mut end = digits(0, accept);
        let mut is_float = false;
        let is_digit = |at: usize| rest.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        if rest[end..].starts_with('.') && is_digit(end + 1) {
            (end, is_float) = (digits(end + 1, accept), true);
        }
        if rest[end..].starts_with(['e', 'E']) {
            let signed = usize::from(rest[end + 1..].starts_with(['+', '-']));
            if is_digit(end + 1 + signed) {
                (end, is_float) = (digits(end + 1 + signed, accept), true);
            }
        }
        let plain = rest[..end].replace('_', "");
        let token = match is_float {
            true => plain.parse().ok().map(Token::Float),
            false => plain.parse().ok().map(Token::Int),
        };
        let Some(token) = token else { return self.fail(format!("the number {plain} is too large")) };
        self.push(token);
        self.advance(end);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let rest = self.rest();
        let mut out = String::new();
        let mut chars = rest.char_indices().skip(1).peekable();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.push(Token::Str(out.into()));
                self.advance(at + 1);
                return Ok(());
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            let Some((_, escape)) = chars.next() else { break };
            let mut hex = |count: usize| -> Option<char> {
                let mut value = 0;
                for _ in 0..count {
                    value = value * 16 + chars.next()?.1.to_digit(16)?;
                }
                char::from_u32(value)
            };
            match escape {
                '\n' => {}
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'a' => out.push('\u{7}'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'v' => out.push('\u{b}'),
                '\\' | '\'' | '"' => out.push(escape),
                'x' | 'u' | 'U' => {
                    let count = match escape {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    match hex(count) {
                        Some(c) => out.push(c),
                        None => return self.fail(format!("the escape \\{escape} in a string is no character")),
                    }
                }
                '0'..='7' => {
                    let mut value = escape.to_digit(8).unwrap_or(0);
                    for _ in 0..2 {
                        let Some(digit) = chars.peek().and_then(|(_, c)| c.to_digit(8)) else { break };
                        value = value * 8 + digit;
                        chars.next();
                    }
                    out.extend(char::from_u32(value));
                }
                other => out.extend(['\\', other]),
            }
        }
        self.fail("a string has no end")
    }
}
