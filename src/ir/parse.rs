//! Reads the text form of a graph; see [`crate::ir::print`] for what it looks like.
//!
//! More is read than is printed: any names, operations without a type, `on <device>`
//! after the header. What is read is well formed and well typed: [`Graph::verify`] accepts it.

use rustc_hash::FxHashMap;

use crate::base::text::Cursor;
use crate::base::{ErrorKind, Layout, Loc, Result, Shape};
use crate::ir::{Graph, InputKind, NodeId};
use crate::op::text;

/// The graph that `text` holds, and nothing else.
pub fn parse(text: &str) -> Result<Graph> {
    let mut c = Cursor::new(text);
    let graph = graph(&mut c)?;
    if c.at_end() { Ok(graph) } else { Err(c.expected("the end")) }
}

impl std::str::FromStr for Graph {
    type Err = crate::base::Error;
    fn from_str(text: &str) -> Result<Graph> {
        parse(text)
    }
}

/// The graph at the cursor.
pub fn graph(c: &mut Cursor<'_>) -> Result<Graph> {
    c.expect("graph")?;
    c.expect("@")?;
    let mut graph = Graph::new(c.word("the graph's name")?);
    let mut names: FxHashMap<String, NodeId> = FxHashMap::default();
    c.list("(", ")", |c| input(c, &mut graph, &mut names))?;
    if c.eat("on") {
        c.word("a device")?;
        // `cuda:0`
        if c.eat(":") {
            c.number::<u32>("the device's number")?;
        }
    }
    if c.eat("params") {
        c.list("(", ")", |c| {
            c.expect("$")?;
            let k: usize = c.number("the parameter's number")?;
            if k != graph.params().len() {
                return Err(c.error(format!("parameter ${k} where ${} is next", graph.params().len())));
            }
            c.expect(":")?;
            let dtype = c.dtype()?;
            graph.param(dtype);
            Ok(())
        })?;
    }
    c.expect("{")?;
    while c.sees("%") {
        statement(c, &mut graph, &mut names)?;
    }
    if c.eat("return") {
        loop {
            let id = operand(c, &names)?;
            graph.output(id);
            if !c.eat(",") {
                break;
            }
        }
    }
    c.expect("}")?;
    graph.verify().map_err(|e| match e.kind() {
        ErrorKind::Bug { detail, .. } => c.error(detail.clone()),
        other => c.error(other.to_string()),
    })?;
    Ok(graph)
}

fn name<'a>(c: &mut Cursor<'a>, names: &FxHashMap<String, NodeId>) -> Result<&'a str> {
    c.expect("%")?;
    let name = c.word("a name")?;
    if names.contains_key(name) { Err(c.error(format!("%{name} is defined twice"))) } else { Ok(name) }
}

fn operand(c: &mut Cursor<'_>, names: &FxHashMap<String, NodeId>) -> Result<NodeId> {
    c.expect("%")?;
    let name = c.word("a name")?;
    names.get(name).copied().ok_or_else(|| c.error(format!("%{name} is not defined above")))
}

fn input(c: &mut Cursor<'_>, graph: &mut Graph, names: &mut FxHashMap<String, NodeId>) -> Result<()> {
    let name = name(c, names)?;
    c.expect(":")?;
    let ty = c.ty()?;
    let mut kind = InputKind::External;
    if c.eat("var") {
        let mut written_by = None;
        if c.eat("->") {
            c.expect("out")?;
            written_by = Some(c.number("an output's number")?);
        }
        kind = InputKind::Var { written_by };
    }
    let layout = layout(c, ty.shape)?;
    let id = graph.input(ty, kind, layout, Loc::NONE);
    names.insert(name.to_string(), id);
    Ok(())
}

/// `strided [s, …] offset n`, both optional.
pub(crate) fn layout(c: &mut Cursor<'_>, shape: Shape) -> Result<Layout> {
    let mut layout = Layout::contiguous(shape);
    if c.eat("strided") {
        let strides = c.list("[", "]", |c| c.number::<isize>("a stride"))?;
        if strides.len() != shape.rank() {
            return Err(c.error(format!("{} strides for the shape {shape}", strides.len())));
        }
        layout.strides[..strides.len()].copy_from_slice(&strides);
    }
    if c.eat("offset") {
        layout.offset = c.number("an offset")?;
    }
    Ok(layout)
}

fn statement(c: &mut Cursor<'_>, graph: &mut Graph, names: &mut FxHashMap<String, NodeId>) -> Result<()> {
    let name = name(c, names)?;
    let declared = if c.eat(":") { Some(c.ty()?) } else { None };
    c.expect("=")?;
    let op = text::parse(c.call("an operation")?).map_err(|e| match e.kind() {
        ErrorKind::Parse { detail, .. } => c.error(detail.clone()),
        other => c.error(other.to_string()),
    })?;
    let mut operands = Vec::new();
    if c.sees("%") && !starts_statement(c.clone()) {
        operands.push(operand(c, names)?);
        while c.eat(",") {
            operands.push(operand(c, names)?);
        }
    }
    let id = graph.op(op, &operands, Loc::NONE).map_err(|e| c.error(e.kind().to_string()))?;
    if let Some(ty) = declared
        && ty != graph.node(id).ty
    {
        return Err(c.error(format!("%{name} is declared as {ty}, but it is {}", graph.node(id).ty)));
    }
    names.insert(name.to_string(), id);
    Ok(())
}

/// Whether the name that is next is defined here, not used: an operation without operands came before.
fn starts_statement(mut ahead: Cursor<'_>) -> bool {
    ahead.eat("%") && ahead.word("a name").is_ok() && (ahead.sees(":") || ahead.sees("="))
}
