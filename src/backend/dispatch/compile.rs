//! The compiling dispatcher: a [`Script`] as straight-line machine code, by Cranelift.
//!
//! One function per plan, `fn(&mut Frame) -> status`: guards compare against immediates, slot addresses are
//! base plus immediate, each step is one call with constant descriptor. There is no loop in it. Calls are
//! direct (rel32) where the code lies near the crate's text, else through a register.

use std::mem::offset_of;
use std::sync::OnceLock;

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, ExtFuncData, ExternalName, FuncRef, Function, InstBuilder, MemFlagsData, Signature,
    UserExternalName, UserFuncName, Value,
};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CompiledCode, Context, FinalizedRelocTarget, binemit::Reloc};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

use super::arena::{Pages, Sealed};
use super::script::{Action, Entry, Output, Script, checked_axes};
use super::{Bound, DONE, Frame, MISFIT, NO_MEMORY};
use crate::base::{Error, ErrorKind, Layout, Result, Shape};
use crate::plan::{PlanInput, SlotKind};

/// The compiled host side of a plan.
pub struct Code {
    entry: unsafe extern "C" fn(*mut Frame) -> u32,
    /// Keeps the code mapped.
    _pages: Sealed,
}

impl Code {
    /// Runs it.
    ///
    /// # Safety
    /// As for `interpret::run`, with the script it was compiled from, which must still be alive.
    #[inline]
    pub(super) unsafe fn call(&self, frame: &mut Frame) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { (self.entry)(frame) }
    }
}

/// Compiles `script` for this machine.
pub fn compile(script: &Script) -> Result<Code> {
    compile_with(script, true)
}

/// Compiles `script` with direct calls if they are wanted and there is room near the callees.
pub(super) fn compile_with(script: &Script, near: bool) -> Result<Code> {
    let (code, targets) = generate(script, &**native()?, Style::Addresses { near }, false)?;
    let text = compile as *const () as usize;
    let pages = Pages::near(text, code.code_buffer().len())?;
    if near && !targets.iter().all(|&t| pages.is_near(t)) {
        return compile_with(script, false);
    }
    let bytes = link(&code, &targets, pages.address())?;
    let pages = pages.seal(&bytes)?;
    // SAFETY: the pages hold a function of this type, made by `generate`.
    let entry =
        unsafe { std::mem::transmute::<*const u8, unsafe extern "C" fn(*mut Frame) -> u32>(pages.start().as_ptr()) };
    Ok(Code { entry, _pages: pages })
}

/// The code for a fixed x86-64 processor as text, with callees and descriptors by name.
pub fn listing(script: &Script) -> Result<String> {
    let builder = cranelift_codegen::isa::lookup_by_name("x86_64-unknown-linux-gnu").map_err(|e| failed(script, e))?;
    let isa = builder.finish(flags().map_err(|e| failed(script, e))?).map_err(|e| failed(script, e))?;
    let (code, _) = generate(script, &*isa, Style::Names, true)?;
    let mut text = code.vcode.unwrap_or_default();
    // Marks are equally long; higher numbers of callees first, so that none is cut short.
    for call in (0..script.calls.len()).rev() {
        text = text.replace(&format!("{:#x}", Style::mark(call)), &format!("[{}]", script.step_name(call)));
    }
    for (i, symbol) in symbols(script).iter().enumerate().rev() {
        text = text.replace(&format!("userextname{i}"), symbol.0);
    }
    Ok(text)
}

fn failed(script: &Script, e: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Compile { kernel: format!("dispatch of {}", script.name()), log: e.to_string() })
}

fn flags() -> Result<settings::Flags, settings::SetError> {
    let mut flags = settings::builder();
    flags.set("opt_level", "none")?;
    flags.set("regalloc_algorithm", "single_pass")?;
    flags.set("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" })?;
    flags.set("is_pic", "false")?;
    flags.set("unwind_info", "false")?;
    Ok(settings::Flags::new(flags))
}

/// The machine as Cranelift sees it.
fn native() -> Result<&'static OwnedTargetIsa> {
    static NATIVE: OnceLock<std::result::Result<OwnedTargetIsa, String>> = OnceLock::new();
    let made = NATIVE.get_or_init(|| {
        let builder = cranelift_native::builder_with_options(true).map_err(str::to_string)?;
        builder.finish(flags().map_err(|e| e.to_string())?).map_err(|e| e.to_string())
    });
    made.as_ref().map_err(|log| Error::new(ErrorKind::Compile { kernel: "dispatch".into(), log: log.clone() }))
}

/// What stands for descriptors and callees in the code.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// Their addresses; callees within reach of a direct call or not.
    Addresses { near: bool },
    /// Numbers that [`listing`] turns into names.
    Names,
}

impl Style {
    /// The number that stands for a step's descriptor.
    fn mark(call: usize) -> u64 {
        0x5157_0000_0000_0000 + call as u64
    }
}

/// The distinct entries of a script, by name.
fn symbols(script: &Script) -> Vec<(&'static str, Entry)> {
    let mut found: Vec<(&'static str, Entry)> = Vec::new();
    for call in &script.calls {
        if !found.iter().any(|&(s, e)| s == call.symbol && std::ptr::fn_addr_eq(e, call.entry)) {
            found.push((call.symbol, call.entry));
        }
    }
    found
}

/// Puts the callees' addresses into the code, which will lie at `start`.
fn link(code: &CompiledCode, targets: &[usize], start: usize) -> Result<Vec<u8>> {
    let bug = |detail: String| Error::bug("dispatch", detail);
    let mut bytes = code.code_buffer().to_vec();
    for reloc in code.buffer.relocs() {
        let FinalizedRelocTarget::ExternalName(ExternalName::User(name)) = &reloc.target else {
            return Err(bug(format!("relocation {reloc:?}")));
        };
        let target = targets[name.as_u32() as usize] as i64 + reloc.addend;
        let at = reloc.offset as usize;
        match reloc.kind {
            Reloc::X86CallPCRel4 => {
                let distance = i32::try_from(target - (start + at) as i64).map_err(|_| bug("a far callee".into()))?;
                bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
            }
            Reloc::Abs8 => bytes[at..at + 8].copy_from_slice(&target.to_le_bytes()),
            kind => return Err(bug(format!("relocation {kind:?}"))),
        }
    }
    Ok(bytes)
}

/// The code of `script` and the addresses of its callees.
fn generate(script: &Script, isa: &dyn TargetIsa, style: Style, text: bool) -> Result<(CompiledCode, Vec<usize>)> {
    let convention = CallConv::triple_default(isa.triple());
    let mut signature = Signature::new(convention);
    signature.params.push(AbiParam::new(I64));
    signature.returns.push(AbiParam::new(I32));
    let mut context = Context::for_function(Function::with_name_signature(UserFuncName::default(), signature));
    context.set_disasm(text);
    let symbols = symbols(script);
    let mut scratch = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(&mut context.func, &mut scratch);
    Emitter::new(script, &mut builder, convention, style, &symbols).emit();
    builder.finalize(isa.frontend_config());
    context.compile(isa, &mut ControlPlane::default()).map_err(|e| failed(script, e.inner))?;
    let code = context.take_compiled_code().ok_or_else(|| failed(script, "no code"))?;
    Ok((code, symbols.iter().map(|&(_, entry)| entry as usize).collect()))
}

struct Emitter<'a, 'f> {
    script: &'a Script,
    b: &'a mut FunctionBuilder<'f>,
    style: Style,
    /// Of each call.
    callees: Vec<FuncRef>,
    alloc: cranelift_codegen::ir::SigRef,
    frame: Value,
    bound: Value,
    params: Value,
    slots: Value,
    /// Where to go without memory.
    no_memory: Block,
}

/// Plain accesses: all pointers are valid and aligned once the frame is.
const FLAGS: MemFlagsData = MemFlagsData::trusted();

impl<'a, 'f> Emitter<'a, 'f> {
    fn new(
        script: &'a Script,
        b: &'a mut FunctionBuilder<'f>,
        convention: CallConv,
        style: Style,
        symbols: &[(&'static str, Entry)],
    ) -> Self {
        let mut call = Signature::new(convention);
        call.params.extend([AbiParam::new(I64); 3]);
        call.returns.push(AbiParam::new(I32));
        let call = b.import_signature(call);
        let mut alloc = Signature::new(convention);
        alloc.params.extend([AbiParam::new(I64), AbiParam::new(I32)]);
        alloc.returns.push(AbiParam::new(I64));
        let alloc = b.import_signature(alloc);
        let functions: Vec<FuncRef> = (0..symbols.len() as u32)
            .map(|index| {
                let name = b.func.declare_imported_user_function(UserExternalName { namespace: 0, index });
                b.import_function(ExtFuncData {
                    name: ExternalName::user(name),
                    signature: call,
                    colocated: style != Style::Addresses { near: false },
                    patchable: false,
                })
            })
            .collect();
        let find = |c: &super::Call| {
            symbols.iter().position(|&(s, e)| s == c.symbol && std::ptr::fn_addr_eq(e, c.entry)).unwrap_or(0)
        };
        let callees = script.calls.iter().map(|c| functions[find(c)]).collect();
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let frame = b.block_params(entry)[0];
        let no_memory = b.create_block();
        b.set_cold_block(no_memory);
        let mut field = |offset: usize| b.ins().load(I64, FLAGS, frame, offset as i32);
        let bound = field(offset_of!(Frame, bound));
        let params = field(offset_of!(Frame, params));
        let slots = field(offset_of!(Frame, slots));
        Emitter { script, b, style, callees, alloc, frame, bound, params, slots, no_memory }
    }

    fn emit(mut self) {
        self.guards();
        self.places();
        let flags = self.actions();
        self.b.ins().store(FLAGS, flags, self.frame, offset_of!(Frame, flags) as i32);
        self.end(DONE);
        self.b.switch_to_block(self.no_memory);
        self.end(NO_MEMORY);
        self.b.seal_all_blocks();
    }

    fn end(&mut self, status: u32) {
        let status = self.b.ins().iconst(I32, status as i64);
        self.b.ins().return_(&[status]);
    }

    fn number(&mut self, value: u64) -> Value {
        self.b.ins().iconst(I64, value as i64)
    }

    /// A field of the binding of `input`.
    fn binding(&mut self, input: usize, field: usize) -> i32 {
        (input * size_of::<Bound>() + field) as i32
    }

    /// Collects every difference from what the plan wants in one value, then branches once.
    fn guards(&mut self) {
        let script = self.script;
        let mut differ: Option<Value> = None;
        for (i, input) in script.inputs.iter().enumerate() {
            self.guard_input(i, input, &mut differ);
        }
        for &(word, max) in &script.bounds {
            let given = self.b.ins().load(I64, FLAGS, self.params, word as i32 * 8);
            let max = self.number(max);
            let above = self.b.ins().icmp(IntCC::UnsignedGreaterThan, given, max);
            let above = self.b.ins().uextend(I64, above);
            self.merge(&mut differ, above);
        }
        let Some(differ) = differ else { return };
        let (misfit, fits) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(misfit);
        self.b.ins().brif(differ, misfit, NONE, fits, NONE);
        self.b.switch_to_block(misfit);
        self.end(MISFIT);
        self.b.switch_to_block(fits);
    }

    fn guard_input(&mut self, i: usize, input: &PlanInput, differ: &mut Option<Value>) {
        let at = self.binding(i, offset_of!(Bound, layout));
        let layout = self.b.ins().load(I64, FLAGS, self.bound, at);
        let at = self.binding(i, offset_of!(Bound, dtype));
        let dtype = self.b.ins().uload32(FLAGS, self.bound, at);
        self.same(differ, dtype, input.ty.dtype as u64);
        let shape_at = offset_of!(Layout, shape);
        let rank = self.b.ins().uload8(I64, FLAGS, layout, (shape_at + Shape::RANK_AT) as i32);
        self.same(differ, rank, input.layout.shape.rank() as u64);
        for (a, &dim) in input.layout.shape.dims().iter().enumerate() {
            self.word(differ, layout, shape_at + Shape::DIMS_AT + 8 * a, dim as u64);
        }
        for a in checked_axes(&input.layout) {
            self.word(differ, layout, offset_of!(Layout, strides) + 8 * a, input.layout.strides[a] as u64);
        }
        let at = self.binding(i, offset_of!(Bound, bytes));
        let bytes = self.b.ins().load(I64, FLAGS, self.bound, at);
        let need = self.number(input.bytes as u64);
        let short = self.b.ins().icmp(IntCC::UnsignedLessThan, bytes, need);
        let short = self.b.ins().uextend(I64, short);
        self.merge(differ, short);
    }

    /// The word at `offset` of `layout` must be `want`.
    fn word(&mut self, differ: &mut Option<Value>, layout: Value, offset: usize, want: u64) {
        let given = self.b.ins().load(I64, FLAGS, layout, offset as i32);
        self.same(differ, given, want);
    }

    fn same(&mut self, differ: &mut Option<Value>, given: Value, want: u64) {
        let difference = if want == 0 {
            given
        } else {
            let want = self.number(want);
            self.b.ins().bxor(given, want)
        };
        self.merge(differ, difference);
    }

    fn merge(&mut self, all: &mut Option<Value>, more: Value) {
        *all = Some(match *all {
            Some(before) => self.b.ins().bor(before, more),
            None => more,
        });
    }

    /// Fills the table of slots; outputs that cannot be in place get their memory.
    fn places(&mut self) {
        let script = self.script;
        let mut arena = None;
        let mut inputs: Vec<Option<Value>> = vec![None; script.inputs.len()];
        for (slot, kind) in script.slots.iter().enumerate() {
            let address = match *kind {
                SlotKind::Arena { offset } => {
                    let at = offset_of!(Frame, arena) as i32;
                    let base = *arena.get_or_insert_with(|| self.b.ins().load(I64, FLAGS, self.frame, at));
                    let offset = self.number(offset as u64);
                    self.b.ins().iadd(base, offset)
                }
                SlotKind::Input(n) => match inputs[n as usize] {
                    Some(address) => address,
                    None => *inputs[n as usize].insert(self.address(n)),
                },
                SlotKind::Output(_) => continue,
            };
            self.put(slot as u32, address);
        }
        for (o, output) in script.outputs.iter().enumerate() {
            let address = match output.in_place {
                None => self.allocate(o),
                Some(input) => {
                    let (own, new, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
                    let address = self.b.append_block_param(done, I64);
                    let exclusive = self.exclusive(input);
                    self.b.ins().brif(exclusive, own, NONE, new, NONE);
                    self.b.switch_to_block(own);
                    let given = self.address(input);
                    self.b.ins().jump(done, &[BlockArg::Value(given)]);
                    self.b.switch_to_block(new);
                    let made = self.allocate(o);
                    self.b.ins().jump(done, &[BlockArg::Value(made)]);
                    self.b.switch_to_block(done);
                    address
                }
            };
            self.put_all(output, address);
        }
    }

    fn address(&mut self, input: u32) -> Value {
        let at = self.binding(input as usize, offset_of!(Bound, address));
        self.b.ins().load(I64, FLAGS, self.bound, at)
    }

    fn exclusive(&mut self, input: u32) -> Value {
        let at = self.binding(input as usize, offset_of!(Bound, exclusive));
        self.b.ins().load(I32, FLAGS, self.bound, at)
    }

    fn put(&mut self, slot: u32, address: Value) {
        self.b.ins().store(FLAGS, address, self.slots, slot as i32 * 8);
    }

    fn put_all(&mut self, output: &Output, address: Value) {
        for &slot in &output.slots {
            self.put(slot, address);
        }
    }

    /// New memory for an output; leaves the function if there is none.
    fn allocate(&mut self, output: usize) -> Value {
        let callee = self.b.ins().load(I64, FLAGS, self.frame, offset_of!(Frame, alloc) as i32);
        let context = self.b.ins().load(I64, FLAGS, self.frame, offset_of!(Frame, context) as i32);
        let index = self.b.ins().iconst(I32, output as i64);
        let call = self.b.ins().call_indirect(self.alloc, callee, &[context, index]);
        let address = self.b.inst_results(call)[0];
        let next = self.b.create_block();
        self.b.ins().brif(address, next, NONE, self.no_memory, NONE);
        self.b.switch_to_block(next);
        address
    }

    /// The calls; returns their flags, or-ed.
    fn actions(&mut self) -> Value {
        let script = self.script;
        let mut flags: Option<Value> = None;
        for action in &script.actions {
            match *action {
                Action::Call(c) => {
                    let c = c as usize;
                    let descriptor = match self.style {
                        Style::Addresses { .. } => script.calls[c].descriptor as u64,
                        Style::Names => Style::mark(c),
                    };
                    let descriptor = self.number(descriptor);
                    let call = self.b.ins().call(self.callees[c], &[descriptor, self.slots, self.params]);
                    if script.flagging[c] {
                        let flag = self.b.inst_results(call)[0];
                        flags = Some(match flags {
                            Some(before) => self.b.ins().bor(before, flag),
                            None => flag,
                        });
                    }
                }
                Action::Spare(o) => {
                    if let Some(flags) = flags {
                        self.spare(o as usize, flags);
                    }
                }
            }
        }
        flags.unwrap_or_else(|| self.b.ins().iconst(I32, 0))
    }

    /// If a flag is up, an output that would go in place gets new memory.
    fn spare(&mut self, o: usize, flags: Value) {
        let output = &self.script.outputs[o];
        let Some(input) = output.in_place else { return };
        let (flagged, new, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(flagged);
        self.b.set_cold_block(new);
        self.b.ins().brif(flags, flagged, NONE, done, NONE);
        self.b.switch_to_block(flagged);
        let exclusive = self.exclusive(input);
        self.b.ins().brif(exclusive, new, NONE, done, NONE);
        self.b.switch_to_block(new);
        let address = self.allocate(o);
        self.put_all(output, address);
        self.b.ins().jump(done, NONE);
        self.b.switch_to_block(done);
    }
}

/// No block arguments.
const NONE: &[BlockArg] = &[];
