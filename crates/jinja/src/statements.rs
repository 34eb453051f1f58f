//! Tokens to a syntax tree: statements.

use crate::ast::{BLOCK_TEXT, Expr, For, Kind, Macro, Postfix, Statement, Target};
use crate::error::Result;
use crate::lexer::{Token, tokens};
use crate::parser::{Parser, Used};
use std::rc::Rc;

/// The statements of a template.
pub fn parse(source: &str) -> Result<Vec<Statement>> {
    let mut parser = Parser::new(tokens(source)?);
    let body = parser.body(&[])?;
    match parser.peek() {
        Token::End => Ok(body),
        _ => parser.unexpected("the end of the template"),
    }
}

impl Parser {
    /// Statements up to a tag that begins with one of `ends`, which stays unread after its `{%`.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        self.nested(|p| p.statements(ends))
    }

    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        let mut out = Vec::new();
        loop {
            let line = self.line();
            match self.peek().clone() {
                Token::End if ends.is_empty() => return Ok(out),
                Token::End => return self.unexpected(&format!("'{{% {} %}}'", ends.join("' or '"))),
                Token::Data(text) => {
                    self.next();
                    out.push(Statement { line, kind: Kind::Data(text) });
                }
                Token::VariableBegin => {
                    self.next();
                    let value = self.tuple(true, false, &[])?;
                    self.expect(&Token::VariableEnd, "'}}'")?;
                    out.push(Statement { line, kind: Kind::Print(value) });
                }
                Token::BlockBegin => {
                    self.next();
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(out);
                    }
                    let kind = self.statement()?;
                    self.block_end()?;
                    out.push(Statement { line, kind });
                }
                _ => return self.unexpected("a tag"),
            }
        }
    }

    fn block_end(&mut self) -> Result<()> {
        self.expect(&Token::BlockEnd, "'%}'")
    }

    /// The body of a block up to `end`, whose name is read.
    fn block(&mut self, end: &str) -> Result<Vec<Statement>> {
        self.block_end()?;
        let body = self.body(&[end])?;
        self.next();
        Ok(body)
    }

    fn statement(&mut self) -> Result<Kind> {
        let name = self.name()?;
        match &*name {
            "if" => self.if_statement(),
            "for" => self.for_statement(),
            "set" => self.set(),
            "with" => self.with(),
            "macro" => self.macro_statement(),
            "call" => self.call_block(),
            "filter" => self.filter_block(),
            "generation" => Ok(Kind::Scope(self.without_loops(|p| p.block("endgeneration"))?)),
            "autoescape" => {
                self.expression()?;
                Ok(Kind::Scope(self.block("endautoescape")?))
            }
            "block" => self.named_block(),
            "print" => Ok(Kind::Print(self.tuple(true, false, &[])?)),
            "break" | "continue" if self.loops == 0 => self.fail(format!("'{name}' outside of a loop")),
            "break" => Ok(Kind::Break),
            "continue" => Ok(Kind::Continue),
            "include" | "import" | "extends" | "from" => {
                while !matches!(self.peek(), Token::BlockEnd | Token::End) {
                    self.next();
                }
                Ok(Kind::Load(name))
            }
            other => self.fail(format!("unknown tag '{other}'")),
        }
    }

    fn if_statement(&mut self) -> Result<Kind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false, false, &[])?;
            self.block_end()?;
            branches.push((test, self.body(&["elif", "else", "endif"])?));
            if self.skip_name("elif") {
                continue;
            }
            let otherwise = if self.skip_name("else") {
                let body = self.block("endif")?;
                return Ok(Kind::If { branches, otherwise: body });
            } else {
                Vec::new()
            };
            self.next();
            return Ok(Kind::If { branches, otherwise });
        }
    }

    fn for_statement(&mut self) -> Result<Kind> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return self.unexpected("'in'");
        }
        let iterable = self.tuple(false, false, &["recursive"])?;
        let condition = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.block_end()?;
        self.loops += 1;
        let body = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = if self.skip_name("else") {
            self.block("endfor")?
        } else {
            self.next();
            Vec::new()
        };
        Ok(Kind::For(Rc::new(For { target, iterable, condition, recursive, body, otherwise })))
    }

    /// Parses what Python compiles to a function of its own, where an outer loop can't be left.
    fn without_loops<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let loops = std::mem::take(&mut self.loops);
        let out = parse(self);
        self.loops = loops;
        out
    }

    /// A name, `namespace.attribute`, or several of them with commas.
    fn target(&mut self, with_attribute: bool) -> Result<Target> {
        let mut all = Vec::new();
        let mut is_tuple = false;
        loop {
            if self.skip_op("(") {
                all.push(self.nested(|p| p.target(with_attribute))?);
                self.expect_op(")")?;
            } else if all.is_empty() || !self.is_name("in") {
                let name = self.name()?;
                if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
                    return self.fail(format!("can't assign to '{name}'"));
                }
                all.push(match with_attribute && self.skip_op(".") {
                    true => Target::Attribute(name, self.name()?),
                    false => Target::Name(name),
                });
            }
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
            if self.is_name("in") || self.is_op("=") {
                break;
            }
        }
        match (is_tuple, all.pop()) {
            (false, Some(one)) => Ok(one),
            (_, last) => {
                all.extend(last);
                Ok(Target::Tuple(all))
            }
        }
    }

    fn set(&mut self) -> Result<Kind> {
        let target = self.target(true)?;
        if self.skip_op("=") {
            return Ok(Kind::Set(target, self.tuple(true, false, &[])?));
        }
        let mut chain = Vec::new();
        self.filters(&mut chain)?;
        let filters = (!chain.is_empty()).then(|| Expr::Postfix(Box::new(Expr::Name(BLOCK_TEXT.into())), chain));
        let body = self.block("endset")?;
        Ok(Kind::SetBlock { target, filters, body })
    }

    fn with(&mut self) -> Result<Kind> {
        let mut values = Vec::new();
        while self.peek() != &Token::BlockEnd {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let target = Target::Name(self.name()?);
            self.expect_op("=")?;
            values.push((target, self.expression()?));
        }
        Ok(Kind::With(values, self.block("endwith")?))
    }

    /// `(name, name=default)`
    fn parameters(&mut self) -> Result<Vec<(Rc<str>, Option<Expr>)>> {
        self.expect_op("(")?;
        let mut out: Vec<(Rc<str>, Option<Expr>)> = Vec::new();
        while !self.skip_op(")") {
            if !out.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.name()?;
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            if default.is_none() && out.iter().any(|(_, default)| default.is_some()) {
                return self.fail(format!("parameter '{name}' without a default follows one with a default"));
            }
            out.push((name, default));
        }
        Ok(out)
    }

    fn macro_body(&mut self, name: Rc<str>, parameters: Vec<(Rc<str>, Option<Expr>)>, end: &str) -> Result<Rc<Macro>> {
        let outer = std::mem::take(&mut self.used);
        let body = self.without_loops(|p| p.block(end))?;
        let Used { varargs, kwargs, caller } = std::mem::replace(&mut self.used, outer);
        Ok(Rc::new(Macro { name, parameters, body, uses_varargs: varargs, uses_kwargs: kwargs, uses_caller: caller }))
    }

    fn macro_statement(&mut self) -> Result<Kind> {
        let name = self.name()?;
        let parameters = self.parameters()?;
        Ok(Kind::Macro(self.macro_body(name, parameters, "endmacro")?))
    }

    fn call_block(&mut self) -> Result<Kind> {
        let parameters = if self.is_op("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(&call, Expr::Postfix(_, chain) if matches!(chain.last(), Some(Postfix::Call(_)))) {
            return self.fail("a call block needs a call");
        }
        let caller = self.macro_body("caller".into(), parameters, "endcall")?;
        Ok(Kind::CallBlock { caller, call })
    }

    fn filter_block(&mut self) -> Result<Kind> {
        let mut chain = Vec::new();
        self.filter(&mut chain)?;
        self.filters(&mut chain)?;
        let filters = Expr::Postfix(Box::new(Expr::Name(BLOCK_TEXT.into())), chain);
        Ok(Kind::FilterBlock { filters, body: self.block("endfilter")? })
    }

    fn named_block(&mut self) -> Result<Kind> {
        self.name()?;
        let _ = self.skip_name("scoped") || self.skip_name("required");
        let body = self.without_loops(|p| p.block("endblock"))?;
        if matches!(self.peek(), Token::Name(_)) {
            self.next();
        }
        Ok(Kind::Block(body))
    }
}
