//! A bound on every value of a template, whatever its operations are.
//!
//! `minijinja` counts steps, and has no hook that sees a value: sixty doublings by `~` are few
//! steps. So the syntax tree is written anew before it is compiled: each expression that makes a
//! value passes it through [`MADE`], text between tags is written as an expression, and an
//! operation whose result is larger than all it is given together (repetition, formats, `replace`
//! …) is called by a name that works out the size first. What an operation is given was counted
//! when it was made, and every other operation writes no more than some times that, so a rendering
//! holds no more than some times its budget, however operations are nested. A namespace changes
//! after it was made; [`WHOLE`] keeps it out of other values and of operations.
//!
//! A child process with a limit of its own would bound everything too, but a library has no program
//! to start; an allocator that counts cannot return an error.

use minijinja::{
    Error,
    machinery::ast::{
        AutoEscape, BinOp, BinOpKind, Block, Break, Call, CallArg, CallBlock, Compare, CompareOp,
        Const, Continue, Do, EmitExpr, Expr, Filter, FilterBlock, ForLoop, GetAttr, GetItem,
        IfCond, IfExpr, List, Macro, Map, Set, SetBlock, Slice, Spanned, Stmt, Template, Test,
        Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
    },
};

use super::budget::refused;

/// The filter that counts a value. No template can name it.
pub(super) const MADE: &str = "%made";
/// The filter that refuses a namespace.
pub(super) const WHOLE: &str = "%whole";
/// The filter that repeats a text or a list, and multiplies numbers.
pub(super) const TIMES: &str = "%times";
/// The filter that formats a text as `%` does, and divides numbers.
pub(super) const PERCENT: &str = "%percent";

/// The statement with every value counted.
///
/// # Errors
/// A statement that reads other templates: there are none.
pub(super) fn statement<'a>(it: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
    Ok(match it {
        Stmt::Template(it) => {
            Stmt::Template(Spanned::new(Template { children: body(&it.children)? }, it.span()))
        }
        Stmt::EmitExpr(it) => {
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr: operand(&it.expr) }, it.span()))
        }
        Stmt::EmitRaw(it) => {
            let text = Const { value: it.raw.into() };
            let expr = Expr::Const(Spanned::new(text, it.span()));
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, it.span()))
        }
        Stmt::ForLoop(it) => {
            let changed = ForLoop {
                target: target(&it.target),
                iter: operand(&it.iter),
                filter_expr: it.filter_expr.as_ref().map(operand),
                recursive: it.recursive,
                body: body(&it.body)?,
                else_body: body(&it.else_body)?,
            };
            Stmt::ForLoop(Spanned::new(changed, it.span()))
        }
        Stmt::IfCond(it) => {
            let changed = IfCond {
                expr: passed(&it.expr),
                true_body: body(&it.true_body)?,
                false_body: body(&it.false_body)?,
            };
            Stmt::IfCond(Spanned::new(changed, it.span()))
        }
        Stmt::WithBlock(it) => {
            let assignments = it.assignments.iter();
            let changed = WithBlock {
                assignments: assignments
                    .map(|(name, value)| (target(name), passed(value)))
                    .collect(),
                body: body(&it.body)?,
            };
            Stmt::WithBlock(Spanned::new(changed, it.span()))
        }
        Stmt::Set(it) => {
            // Only a namespace has attributes that can be set.
            let expr = match it.target {
                Expr::GetAttr(_) => filter(WHOLE, passed(&it.expr), Vec::new()),
                _ => passed(&it.expr),
            };
            Stmt::Set(Spanned::new(Set { target: target(&it.target), expr }, it.span()))
        }
        Stmt::SetBlock(it) => {
            let changed = SetBlock {
                target: target(&it.target),
                filter: it.filter.as_ref().map(operand),
                body: body(&it.body)?,
            };
            Stmt::SetBlock(Spanned::new(changed, it.span()))
        }
        Stmt::AutoEscape(it) => {
            let changed = AutoEscape { enabled: operand(&it.enabled), body: body(&it.body)? };
            Stmt::AutoEscape(Spanned::new(changed, it.span()))
        }
        Stmt::FilterBlock(it) => {
            let changed = FilterBlock { filter: operand(&it.filter), body: body(&it.body)? };
            Stmt::FilterBlock(Spanned::new(changed, it.span()))
        }
        Stmt::Block(it) => {
            let changed = Block { name: it.name, required: it.required, body: body(&it.body)? };
            Stmt::Block(Spanned::new(changed, it.span()))
        }
        Stmt::Macro(it) => Stmt::Macro(function(it)?),
        Stmt::CallBlock(it) => {
            let changed = CallBlock { call: call(&it.call), macro_decl: function(&it.macro_decl)? };
            Stmt::CallBlock(Spanned::new(changed, it.span()))
        }
        Stmt::Continue(it) => Stmt::Continue(Spanned::new(Continue, it.span())),
        Stmt::Break(it) => Stmt::Break(Spanned::new(Break, it.span())),
        Stmt::Do(it) => Stmt::Do(Spanned::new(Do { call: call(&it.call) }, it.span())),
        Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
            return Err(refused("a chat template cannot read other templates"));
        }
    })
}

fn body<'a>(statements: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>, Error> {
    statements.iter().map(statement).collect()
}

fn function<'a>(it: &Spanned<Macro<'a>>) -> Result<Spanned<Macro<'a>>, Error> {
    let changed = Macro {
        name: it.name,
        args: it.args.iter().map(target).collect(),
        defaults: it.defaults.iter().map(passed).collect(),
        body: body(&it.body)?,
    };
    Ok(Spanned::new(changed, it.span()))
}

/// The names that a value is given to.
fn target<'a>(it: &Expr<'a>) -> Expr<'a> {
    match it {
        Expr::List(it) => {
            let items = it.items.iter().map(target).collect();
            Expr::List(Spanned::new(List { items }, it.span()))
        }
        other => passed(other),
    }
}

/// An expression whose value an operation reads.
fn operand<'a>(it: &Expr<'a>) -> Expr<'a> {
    expression(it, false)
}

/// An expression whose value is only given on, so that it may be a namespace.
fn passed<'a>(it: &Expr<'a>) -> Expr<'a> {
    expression(it, true)
}

fn expression<'a>(it: &Expr<'a>, namespace: bool) -> Expr<'a> {
    match it {
        Expr::Var(it) => {
            let name = Expr::Var(Spanned::new(Var { id: it.id }, it.span()));
            if namespace { name } else { filter(WHOLE, name, Vec::new()) }
        }
        Expr::Const(it) => Expr::Const(Spanned::new(Const { value: it.value.clone() }, it.span())),
        Expr::Slice(it) => {
            let part = |part: &Option<Expr<'a>>| part.as_ref().map(operand);
            made(Expr::Slice(Spanned::new(
                Slice {
                    expr: operand(&it.expr),
                    start: part(&it.start),
                    stop: part(&it.stop),
                    step: part(&it.step),
                },
                it.span(),
            )))
        }
        Expr::UnaryOp(it) => {
            let op =
                if matches!(it.op, UnaryOpKind::Not) { UnaryOpKind::Not } else { UnaryOpKind::Neg };
            Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: passed(&it.expr) }, it.span()))
        }
        Expr::BinOp(it) => binary(it, namespace),
        Expr::Compare(it) => {
            let op = |it: &CompareOp<'a>| CompareOp { op: it.op, expr: operand(&it.expr) };
            let changed = Compare { expr: operand(&it.expr), ops: it.ops.iter().map(op).collect() };
            Expr::Compare(Spanned::new(changed, it.span()))
        }
        Expr::IfExpr(it) => Expr::IfExpr(Spanned::new(
            IfExpr {
                test_expr: passed(&it.test_expr),
                true_expr: expression(&it.true_expr, namespace),
                false_expr: it.false_expr.as_ref().map(|it| expression(it, namespace)),
            },
            it.span(),
        )),
        Expr::Filter(it) => {
            let expr = it.expr.as_ref().map(operand);
            let changed = Filter { name: it.name, expr, args: arguments(&it.args, false) };
            made(Expr::Filter(Spanned::new(changed, it.span())))
        }
        Expr::Test(it) => {
            let args = arguments(&it.args, false);
            let changed = Test { name: it.name, expr: passed(&it.expr), args };
            Expr::Test(Spanned::new(changed, it.span()))
        }
        Expr::GetAttr(it) => {
            let changed = GetAttr { expr: passed(&it.expr), name: it.name };
            Expr::GetAttr(Spanned::new(changed, it.span()))
        }
        Expr::GetItem(it) => {
            let subscript_expr = operand(&it.subscript_expr);
            let changed = GetItem { expr: passed(&it.expr), subscript_expr };
            Expr::GetItem(Spanned::new(changed, it.span()))
        }
        Expr::Call(it) => made(Expr::Call(call(it))),
        Expr::List(it) => {
            let items = it.items.iter().map(passed).collect();
            literal(Expr::List(Spanned::new(List { items }, it.span())))
        }
        Expr::Tuple(it) => {
            let items = it.items.iter().map(passed).collect();
            literal(Expr::Tuple(Spanned::new(Tuple { items }, it.span())))
        }
        Expr::Map(it) => {
            let changed = Map {
                keys: it.keys.iter().map(passed).collect(),
                values: it.values.iter().map(passed).collect(),
            };
            literal(Expr::Map(Spanned::new(changed, it.span())))
        }
    }
}

fn binary<'a>(it: &Spanned<BinOp<'a>>, namespace: bool) -> Expr<'a> {
    let with = |namespace| {
        let (left, right) = (expression(&it.left, namespace), expression(&it.right, namespace));
        Expr::BinOp(Spanned::new(BinOp { op: it.op, left, right }, it.span()))
    };
    match it.op {
        BinOpKind::ScAnd | BinOpKind::ScOr => with(namespace),
        BinOpKind::Add | BinOpKind::Concat => made(with(false)),
        BinOpKind::Mul | BinOpKind::Rem => {
            let name = if matches!(it.op, BinOpKind::Mul) { TIMES } else { PERCENT };
            let right = CallArg::Pos(operand(&it.right));
            let args = vec![right];
            let changed = Filter { name, expr: Some(operand(&it.left)), args };
            made(Expr::Filter(Spanned::new(changed, it.span())))
        }
        BinOpKind::Eq
        | BinOpKind::Ne
        | BinOpKind::Lt
        | BinOpKind::Lte
        | BinOpKind::Gt
        | BinOpKind::Gte
        | BinOpKind::In
        | BinOpKind::Sub
        | BinOpKind::Div
        | BinOpKind::FloorDiv
        | BinOpKind::Pow => with(false),
    }
}

fn call<'a>(it: &Spanned<Call<'a>>) -> Spanned<Call<'a>> {
    // A macro may be given a namespace; methods of values look into what they are given.
    let function = matches!(it.expr, Expr::Var(_));
    let changed = Call { expr: passed(&it.expr), args: arguments(&it.args, function) };
    Spanned::new(changed, it.span())
}

fn arguments<'a>(args: &[CallArg<'a>], namespace: bool) -> Vec<CallArg<'a>> {
    let args = args.iter().map(|arg| match arg {
        CallArg::Pos(it) => CallArg::Pos(expression(it, namespace)),
        CallArg::Kwarg(name, it) => CallArg::Kwarg(name, expression(it, namespace)),
        CallArg::PosSplat(it) => CallArg::PosSplat(operand(it)),
        CallArg::KwargSplat(it) => CallArg::KwargSplat(operand(it)),
    });
    args.collect()
}

/// A literal, counted unless it is as the template has it.
fn literal<'a>(it: Expr<'a>) -> Expr<'a> {
    if it.as_const().is_some() { it } else { made(it) }
}

fn made<'a>(it: Expr<'a>) -> Expr<'a> {
    filter(MADE, it, Vec::new())
}

fn filter<'a>(name: &'static str, it: Expr<'a>, args: Vec<CallArg<'a>>) -> Expr<'a> {
    let span = it.span();
    Expr::Filter(Spanned::new(Filter { name, expr: Some(it), args }, span))
}
