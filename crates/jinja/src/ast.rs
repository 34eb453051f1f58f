//! The syntax tree. Chains of operators are lists, so that only real nesting nests.

use crate::value::Value;
use std::rc::Rc;

/// An expression.
#[derive(Debug)]
pub enum Expr {
    Const(Value),
    Name(Rc<str>),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// Operators of one precedence, from left to right.
    Arithmetic(Box<Expr>, Vec<(&'static str, Expr)>),
    /// `a ~ b ~ c`
    Concat(Vec<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// `then if test else otherwise`
    Conditional {
        test: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
        line: usize,
    },
    Postfix(Box<Expr>, Vec<Postfix>),
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// Operation that follows a value.
#[derive(Debug)]
pub enum Postfix {
    /// `.name`
    Attribute(Rc<str>),
    /// `[key]`
    Item(Expr),
    /// `[start:stop:step]`
    Slice([Option<Box<Expr>>; 3]),
    /// `(...)`
    Call(CallArgs),
    /// `| name(...)`
    Filter(Rc<str>, CallArgs),
    /// `is name ...`, or `is not`
    Test { name: Rc<str>, args: CallArgs, negated: bool },
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub struct CallArgs {
    pub positional: Vec<Expr>,
    pub keyword: Vec<(Rc<str>, Expr)>,
    pub star: Option<Box<Expr>>,
    pub star_star: Option<Box<Expr>>,
}

/// Target of an assignment.
#[derive(Debug)]
pub enum Target {
    Name(Rc<str>),
    Attribute(Rc<str>, Rc<str>),
    Tuple(Vec<Target>),
}

/// A statement with its line.
#[derive(Debug)]
pub struct Statement {
    pub line: usize,
    pub kind: Kind,
}

/// A statement.
#[derive(Debug)]
pub enum Kind {
    Data(Rc<str>),
    Print(Expr),
    If {
        branches: Vec<(Expr, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    For(Rc<For>),
    Set(Target, Expr),
    SetBlock {
        target: Target,
        filters: Option<Expr>,
        body: Vec<Statement>,
    },
    With(Vec<(Target, Expr)>, Vec<Statement>),
    Macro(Rc<Macro>),
    CallBlock {
        caller: Rc<Macro>,
        call: Expr,
    },
    FilterBlock {
        filters: Expr,
        body: Vec<Statement>,
    },
    /// `{% generation %}` and `{% autoescape %}`: a scope of its own and nothing else.
    Scope(Vec<Statement>),
    Block(Vec<Statement>),
    /// `include`, `import` and `extends`, for which there is no loader.
    Load(Rc<str>),
    Break,
    Continue,
}

/// A `for` loop.
#[derive(Debug)]
pub struct For {
    pub target: Target,
    pub iterable: Expr,
    pub condition: Option<Expr>,
    pub recursive: bool,
    pub body: Vec<Statement>,
    pub otherwise: Vec<Statement>,
}

/// A macro, or the body of a call block.
#[derive(Debug)]
pub struct Macro {
    pub name: Rc<str>,
    pub parameters: Vec<(Rc<str>, Option<Expr>)>,
    pub body: Vec<Statement>,
    pub uses_varargs: bool,
    pub uses_kwargs: bool,
    pub uses_caller: bool,
}

/// The name under which a filter block's text stands in its filters.
pub const BLOCK_TEXT: &str = " text";
