//! Tokens to a syntax tree: expressions. Statements are in [`super::statements`].

use crate::ast::{CallArgs, Comparison, Expr, Postfix};
use crate::error::{Error, Result};
use crate::lexer::Token;
use crate::value::Value;
use std::rc::Rc;

/// Levels of nesting in the source.
const MAX_NESTING: usize = 150;

/// Names in the body of a macro that change its signature.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    pub varargs: bool,
    pub kwargs: bool,
    pub caller: bool,
}

pub(crate) struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    nesting: usize,
    pub used: Used,
    pub loops: usize,
}

impl Parser {
    pub fn new(tokens: Vec<(Token, usize)>) -> Self {
        Parser { tokens, at: 0, nesting: 0, used: Used::default(), loops: 0 }
    }

    pub fn line(&self) -> usize {
        self.tokens[self.at].1
    }

    pub fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn look(&self, ahead: usize) -> &Token {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].0
    }

    pub fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    pub fn fail<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::at(self.line(), what))
    }

    pub fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        let found = match self.peek() {
            Token::Data(_) => "text".into(),
            Token::Name(name) => format!("'{name}'"),
            Token::Str(_) => "a string".into(),
            Token::Int(n) => format!("{n}"),
            Token::Float(n) => format!("{n}"),
            Token::Op(op) => format!("'{op}'"),
            Token::VariableBegin => "'{{'".into(),
            Token::VariableEnd => "'}}'".into(),
            Token::BlockBegin => "'{%'".into(),
            Token::BlockEnd => "'%}'".into(),
            Token::End => "the end of the template".into(),
        };
        self.fail(format!("{wanted} expected, {found} found"))
    }

    pub fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Token::Op(found) if *found == op)
    }

    pub fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.next();
        }
        found
    }

    pub fn expect_op(&mut self, op: &str) -> Result<()> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("'{op}'")) }
    }

    pub fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if &**found == name)
    }

    pub fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    pub fn name(&mut self) -> Result<Rc<str>> {
        match self.peek() {
            Token::Name(_) => match self.next() {
                Token::Name(name) => Ok(name),
                _ => self.unexpected("a name"),
            },
            _ => self.unexpected("a name"),
        }
    }

    pub fn expect(&mut self, token: &Token, wanted: &str) -> Result<()> {
        if self.peek() == token {
            self.next();
            return Ok(());
        }
        self.unexpected(wanted)
    }

    /// Runs `parse` one level deeper.
    pub fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.nesting == MAX_NESTING {
            let what = format!("the template is nested deeper than {MAX_NESTING} levels");
            return Err(Error::Limit { line: self.line(), what });
        }
        self.nesting += 1;
        let out = parse(self);
        self.nesting -= 1;
        out
    }

    /// An expression.
    pub fn expression(&mut self) -> Result<Expr> {
        self.nested(Self::conditional)
    }

    /// An expression without an inline `if`.
    pub fn plain_expression(&mut self) -> Result<Expr> {
        self.nested(Self::or)
    }

    fn conditional(&mut self) -> Result<Expr> {
        let mut first = self.or()?;
        loop {
            let line = self.line();
            if !self.skip_name("if") {
                return Ok(first);
            }
            let test = Box::new(self.or()?);
            let otherwise = if self.skip_name("else") { Some(Box::new(self.expression()?)) } else { None };
            let ends = otherwise.is_some();
            first = Expr::Conditional { test, then: Box::new(first), otherwise, line };
            if ends {
                return Ok(first);
            }
            // Without an else, another `if` may follow: each makes the tree deeper.
            if self.is_name("if") {
                return self.fail("an inline if without else is followed by another");
            }
        }
    }

    fn chain(
        &mut self,
        word: &str,
        operand: fn(&mut Self) -> Result<Expr>,
        make: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr> {
        let first = operand(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_name(word) {
            all.push(operand(self)?);
        }
        Ok(make(all))
    }

    fn or(&mut self) -> Result<Expr> {
        self.chain("or", Self::and, Expr::Or)
    }

    fn and(&mut self) -> Result<Expr> {
        self.chain("and", Self::not, Expr::And)
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Op("==") => Comparison::Eq,
                Token::Op("!=") => Comparison::Ne,
                Token::Op("<") => Comparison::Lt,
                Token::Op("<=") => Comparison::Le,
                Token::Op(">") => Comparison::Gt,
                Token::Op(">=") => Comparison::Ge,
                Token::Name(name) if &**name == "in" => Comparison::In,
                Token::Name(name) if &**name == "not" && matches!(self.look(1), Token::Name(n) if &**n == "in") => {
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn arithmetic(&mut self, operators: &[&'static str], operand: fn(&mut Self) -> Result<Expr>) -> Result<Expr> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(op) = operators.iter().find(|op| self.is_op(op)) {
            self.next();
            rest.push((*op, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Arithmetic(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Result<Expr> {
        self.arithmetic(&["+", "-"], Self::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_op("~") {
            all.push(self.product()?);
        }
        Ok(Expr::Concat(all))
    }

    fn product(&mut self) -> Result<Expr> {
        self.arithmetic(&["*", "/", "//", "%"], Self::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.arithmetic(&["**"], |p| p.unary(true))
    }

    fn unary(&mut self, with_filter: bool) -> Result<Expr> {
        let node = if self.skip_op("-") {
            Expr::Neg(Box::new(self.nested(|p| p.unary(false))?))
        } else if self.skip_op("+") {
            Expr::Pos(Box::new(self.nested(|p| p.unary(false))?))
        } else {
            self.primary()?
        };
        let mut postfix = Vec::new();
        self.postfix(&mut postfix)?;
        if with_filter {
            self.filters(&mut postfix)?;
        }
        Ok(if postfix.is_empty() { node } else { Expr::Postfix(Box::new(node), postfix) })
    }

    fn primary(&mut self) -> Result<Expr> {
        match self.peek().clone() {
            Token::Name(name) => {
                self.next();
                Ok(match &*name {
                    "true" | "True" => Expr::Const(Value::Bool(true)),
                    "false" | "False" => Expr::Const(Value::Bool(false)),
                    "none" | "None" => Expr::Const(Value::None),
                    "varargs" => {
                        self.used.varargs = true;
                        Expr::Name(name)
                    }
                    "kwargs" => {
                        self.used.kwargs = true;
                        Expr::Name(name)
                    }
                    "caller" => {
                        self.used.caller = true;
                        Expr::Name(name)
                    }
                    _ => Expr::Name(name),
                })
            }
            Token::Str(first) => {
                self.next();
                let mut text = first.to_string();
                while let Token::Str(more) = self.peek().clone() {
                    self.next();
                    text.push_str(&more);
                }
                Ok(Expr::Const(Value::Str(text.into())))
            }
            Token::Int(n) => {
                self.next();
                Ok(Expr::Const(Value::Int(n)))
            }
            Token::Float(n) => {
                self.next();
                Ok(Expr::Const(Value::Float(n)))
            }
            Token::Op("(") => {
                self.next();
                let inner = self.tuple(true, true, &[])?;
                self.expect_op(")")?;
                Ok(inner)
            }
            Token::Op("[") => {
                self.next();
                let items = self.items("]")?;
                Ok(Expr::List(items))
            }
            Token::Op("{") => self.dict(),
            _ => self.unexpected("a value"),
        }
    }

    /// Expressions up to a closing bracket.
    fn items(&mut self, close: &str) -> Result<Vec<Expr>> {
        let mut items = Vec::new();
        while !self.skip_op(close) {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(close) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn dict(&mut self) -> Result<Expr> {
        self.expect_op("{")?;
        let mut items = Vec::new();
        while !self.skip_op("}") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            items.push((key, self.expression()?));
        }
        Ok(Expr::Dict(items))
    }

    /// One expression, or several with commas as a tuple. `ends` are names that end it.
    pub fn tuple(&mut self, conditionals: bool, parenthesized: bool, ends: &[&str]) -> Result<Expr> {
        let mut all = Vec::new();
        let mut is_tuple = false;
        loop {
            if !all.is_empty() && !is_tuple {
                break;
            }
            let ended = match self.peek() {
                Token::VariableEnd | Token::BlockEnd | Token::Op(")") => true,
                Token::Name(name) => ends.contains(&&**name),
                _ => false,
            };
            if ended {
                break;
            }
            all.push(if conditionals { self.expression()? } else { self.plain_expression()? });
            if self.skip_op(",") {
                is_tuple = true;
            } else {
                break;
            }
        }
        if is_tuple {
            return Ok(Expr::Tuple(all));
        }
        match all.pop() {
            Some(one) => Ok(one),
            None if parenthesized => Ok(Expr::Tuple(Vec::new())),
            None => self.unexpected("an expression"),
        }
    }

    /// `.name`, `[...]` and `(...)`.
    fn postfix(&mut self, out: &mut Vec<Postfix>) -> Result<()> {
        loop {
            if self.skip_op(".") {
                match self.next() {
                    Token::Name(name) => out.push(Postfix::Attribute(name)),
                    Token::Int(n) => out.push(Postfix::Item(Expr::Const(Value::Int(n)))),
                    _ => return self.fail("a name or a number is expected after '.'"),
                }
            } else if self.skip_op("[") {
                let subscript = self.nested(Self::subscript)?;
                out.push(subscript);
            } else if self.is_op("(") {
                let args = self.nested(Self::call_args)?;
                out.push(Postfix::Call(args));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Result<Postfix> {
        let mut parts: [Option<Box<Expr>>; 3] = [None, None, None];
        let (mut part, mut is_slice) = (0, false);
        loop {
            if self.skip_op("]") {
                break;
            }
            if self.skip_op(":") {
                (part, is_slice) = (part + 1, true);
                if part > 2 {
                    return self.fail("a slice has three parts");
                }
                continue;
            }
            if parts[part].is_some() {
                return self.unexpected("']'");
            }
            let mut value = self.expression()?;
            if self.is_op(",") && !is_slice {
                let mut all = vec![value];
                while self.skip_op(",") {
                    all.push(self.expression()?);
                }
                value = Expr::Tuple(all);
            }
            parts[part] = Some(Box::new(value));
        }
        if is_slice {
            return Ok(Postfix::Slice(parts));
        }
        let [first, ..] = parts;
        match first {
            Some(key) => Ok(Postfix::Item(*key)),
            None => self.fail("an index is expected in '[]'"),
        }
    }

    /// `(...)` of a call.
    pub fn call_args(&mut self) -> Result<CallArgs> {
        self.expect_op("(")?;
        let mut args = CallArgs::default();
        let mut first = true;
        while !self.skip_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            first = false;
            if self.skip_op("*") {
                args.star = Some(Box::new(self.expression()?));
            } else if self.skip_op("**") {
                args.star_star = Some(Box::new(self.expression()?));
            } else if matches!(self.peek(), Token::Name(_)) && matches!(self.look(1), Token::Op("=")) {
                let name = self.name()?;
                self.next();
                args.keyword.push((name, self.expression()?));
            } else if args.keyword.is_empty() && args.star_star.is_none() {
                args.positional.push(self.expression()?);
            } else {
                return self.fail("a positional argument follows a keyword argument");
            }
        }
        Ok(args)
    }

    fn dotted(&mut self) -> Result<Rc<str>> {
        let mut name = self.name()?.to_string();
        while self.skip_op(".") {
            name = format!("{name}.{}", self.name()?);
        }
        Ok(name.into())
    }

    /// `| filter`, `is test`, and calls of what comes before.
    pub fn filters(&mut self, out: &mut Vec<Postfix>) -> Result<()> {
        loop {
            if self.skip_op("|") {
                self.filter(out)?;
            } else if self.is_name("is") {
                self.next();
                self.test(out)?;
            } else if self.is_op("(") {
                let args = self.nested(Self::call_args)?;
                out.push(Postfix::Call(args));
            } else {
                return Ok(());
            }
        }
    }

    /// A filter's name and arguments.
    pub fn filter(&mut self, out: &mut Vec<Postfix>) -> Result<()> {
        let name = self.dotted()?;
        let args = if self.is_op("(") { self.nested(Self::call_args)? } else { CallArgs::default() };
        out.push(Postfix::Filter(name, args));
        Ok(())
    }

    fn test(&mut self, out: &mut Vec<Postfix>) -> Result<()> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        let mut args = CallArgs::default();
        let takes_argument = match self.peek() {
            Token::Op("(") => {
                args = self.nested(Self::call_args)?;
                false
            }
            Token::Name(name) => {
                if &**name == "is" {
                    return self.fail("tests can't be chained with 'is'");
                }
                !matches!(&**name, "else" | "or" | "and")
            }
            Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{") => true,
            _ => false,
        };
        if takes_argument {
            let argument = self.nested(|p| {
                let node = p.primary()?;
                let mut postfix = Vec::new();
                p.postfix(&mut postfix)?;
                Ok(if postfix.is_empty() { node } else { Expr::Postfix(Box::new(node), postfix) })
            })?;
            args.positional.push(argument);
        }
        out.push(Postfix::Test { name, args, negated });
        Ok(())
    }
}
