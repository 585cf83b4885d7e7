//! What a random program is: lists of statements over a few registers, as data that prints as Rust.

/// A program: what happens before each call, what the step's closure does, and how it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The length called [`Dim::M`], in most calls and in those of `alt`.
    pub m: (usize, usize),
    /// Bit mask of the calls in which `M` has its second value.
    pub alt: u32,
    /// The length called [`Dim::N`].
    pub n: usize,
    /// Per call the step that runs the body: 1 or 2; 0 is plain eager code.
    pub steps: Vec<u8>,
    pub options: Options,
    pub before: Vec<Line>,
    pub body: Vec<Line>,
}

/// How the traced run is compiled and where it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub fuse: bool,
    pub in_place: bool,
    pub plan_cache: usize,
    /// Position in the list of devices.
    pub device: usize,
    /// Bit mask of the calls in which indices are out of range; 0: no index ever is.
    pub wild: u32,
    /// Bit mask of the calls that another thread makes.
    pub threads: u32,
    /// Bit mask of the calls that are first tried with hardly any memory left.
    pub starved: u32,
}

/// A statement, and when it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Line(pub When, pub Stmt);

/// When a statement runs: host control flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    Always,
    /// In the calls of this bit mask.
    Calls(u32),
    /// If the last number read on the host in this call is positive.
    Positive,
}

/// A host number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Host {
    Fixed(f32),
    /// This times the number of the call.
    Schedule(f32),
    /// The last number read on the host in this call.
    LastRead,
}

/// An axis length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dim {
    M,
    N,
    Of(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    Neg,
    Abs,
    Exp,
    Log,
    Sin,
    Cos,
    Tanh,
    Sqrt,
    Recip,
    Relu,
    Detach,
    Not,
    Exp2,
    Expm1,
    Log1p,
    Log2,
    Log10,
    Rsqrt,
    Sigmoid,
    Erf,
    Erfc,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Floor,
    Ceil,
    Round,
    Trunc,
    Sign,
    IsNan,
    IsInf,
    IsFinite,
    Square,
    Cube,
    Clamp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Maximum,
    Minimum,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Xor,
    Pow,
    Atan2,
    Rem,
    Fmod,
    ClampMin,
    ClampMax,
    Shl,
    Shr,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
    Sum,
    Max,
    Min,
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Type {
    F64,
    F32,
    BF16,
    F16,
    I64,
    I32,
    I8,
    U8,
    Bool,
}

/// Registers `d` (written), `a`, `b`, `c` (read); a statement that fails leaves `d` as it was, and its error is observed.
/// Axes, starts and lengths are reduced to what the operand has.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// A tensor made before all calls; which one may differ from call to call.
    Input {
        d: u8,
        k: Vec<u8>,
    },
    /// A tensor made from host data here.
    Fresh {
        d: u8,
        ty: Type,
        dims: Vec<Dim>,
        seed: u8,
    },
    Full {
        d: u8,
        dims: Vec<Dim>,
        value: Host,
    },
    Draw {
        d: u8,
        rng: u8,
        dims: Vec<Dim>,
    },
    /// A draw that is not uniform: which kind.
    DrawOther {
        d: u8,
        rng: u8,
        dims: Vec<Dim>,
        how: u8,
    },
    /// Reads a variable; which one may differ from call to call.
    Get {
        d: u8,
        v: Vec<u8>,
    },
    Set {
        v: Vec<u8>,
        a: u8,
    },
    /// Exchanges the values of two variables.
    Swap {
        v: u8,
        w: u8,
    },
    /// Makes a variable of its own, and reads it.
    Fork {
        d: u8,
        a: u8,
    },
    Copy {
        d: u8,
        a: u8,
    },
    Unary {
        d: u8,
        op: Unary,
        a: u8,
    },
    Binary {
        d: u8,
        op: Binary,
        a: u8,
        b: u8,
    },
    /// `a op host`, or `host op a` for the four operators.
    WithHost {
        d: u8,
        op: Binary,
        a: u8,
        host: Host,
        left: bool,
    },
    Select {
        d: u8,
        a: u8,
        b: u8,
        c: u8,
    },
    SelectHost {
        d: u8,
        a: u8,
        b: u8,
        host: Host,
        first: bool,
    },
    Cast {
        d: u8,
        a: u8,
        to: Type,
    },
    Reshape {
        d: u8,
        a: u8,
        dims: Vec<Dim>,
    },
    Flatten {
        d: u8,
        a: u8,
    },
    Transpose {
        d: u8,
        a: u8,
        x: u8,
        y: u8,
    },
    Expand {
        d: u8,
        a: u8,
        dims: Vec<Dim>,
    },
    Unsqueeze {
        d: u8,
        a: u8,
        axis: u8,
    },
    Squeeze {
        d: u8,
        a: u8,
        axis: u8,
    },
    Slice {
        d: u8,
        a: u8,
        axis: u8,
        start: Host,
        len: u8,
        step: u8,
    },
    Concat {
        d: u8,
        a: u8,
        b: u8,
        c: Option<u8>,
        axis: u8,
    },
    Matmul {
        d: u8,
        a: u8,
        b: u8,
    },
    /// `b` is brought into range first.
    Gather {
        d: u8,
        a: u8,
        b: u8,
        axis: u8,
    },
    ScatterAdd {
        d: u8,
        a: u8,
        b: u8,
        c: u8,
        axis: u8,
    },
    Reduce {
        d: u8,
        op: Reduction,
        a: u8,
        axes: u8,
        keepdim: bool,
    },
    /// An operation of the list in `ops.rs`.
    Op {
        d: u8,
        name: &'static str,
        a: u8,
        b: u8,
        c: u8,
        axis: u8,
        k: u8,
        host: Host,
        rng: u8,
    },
    Softmax {
        d: u8,
        a: u8,
        axis: u8,
    },
    LogSoftmax {
        d: u8,
        a: u8,
        axis: u8,
    },
    Mse {
        d: u8,
        a: u8,
        b: u8,
    },
    /// `b` as labels, brought into range first.
    CrossEntropy {
        d: u8,
        a: u8,
        b: u8,
    },
    /// A read on the host, observed.
    Read {
        a: u8,
    },
    /// Keeps a value across calls.
    Keep {
        slot: u8,
        a: u8,
    },
    Push {
        a: u8,
    },
    Unkeep {
        slot: u8,
    },
    /// A value kept in an earlier call (or this one).
    Load {
        d: u8,
        slot: u8,
        detach: bool,
    },
    /// Among the closure's results.
    Return {
        a: u8,
    },
    /// `a` reduced to a scalar, and its gradients.
    Backward {
        a: u8,
    },
    /// The gradient of a variable, by the last `backward` of this call.
    Grad {
        d: u8,
        v: u8,
    },
    KeepGrads {
        slot: u8,
    },
    LoadGrads {
        slot: u8,
    },
    Adam {
        lr: Host,
    },
    Sgd {
        lr: Host,
    },
    /// The next `len` statements as a step of its own, which is part of an open one.
    Nested {
        len: u8,
    },
    /// The closure returns an error.
    Fail,
    Panic,
    Reseed {
        rng: u8,
        seed: u8,
    },
    /// To another device, doubled there, and back.
    Away {
        d: u8,
        a: u8,
    },
    /// Another variable takes the place of this one, with new values.
    Replace {
        v: u8,
        seed: u8,
    },
    /// The step starts over.
    Renew {
        step: u8,
    },
}

impl std::fmt::Display for Program {
    /// As Rust, to be pasted into `regressions.rs`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rust = |text: String| text.replace('[', "vec![");
        let lines = |lines: &[Line]| -> String {
            let each: Vec<String> = lines.iter().map(|l| format!("        {},\n", rust(format!("{l:?}")))).collect();
            if each.is_empty() { "vec![]".into() } else { format!("vec![\n{}    ]", each.concat()) }
        };
        writeln!(f, "Program {{")?;
        writeln!(f, "    m: {:?}, alt: {}, n: {},", self.m, self.alt, self.n)?;
        writeln!(f, "    steps: {},", rust(format!("{:?}", self.steps)))?;
        writeln!(f, "    options: {:?},", self.options)?;
        writeln!(f, "    before: {},", lines(&self.before))?;
        writeln!(f, "    body: {},", lines(&self.body))?;
        write!(f, "}}")
    }
}
