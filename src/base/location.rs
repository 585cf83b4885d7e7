//! Where in the user's code something happened.
//!
//! `#[track_caller]` is lost in closures and trait objects, so a library method that
//! emits several ops opens one [`Scope`] at its public entry: inside it every op is
//! attributed to the user's line. Scopes nest; the outermost wins.

use std::cell::Cell;
use std::panic::Location;

/// A `file:line` of the user's program, or of a text-form input.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Loc {
    place: Option<&'static Location<'static>>,
    /// The node computes a gradient of the op at `place`.
    gradient: bool,
}

impl Loc {
    /// No place known (a graph built from text without comments).
    pub const NONE: Loc = Loc { place: None, gradient: false };

    /// The caller's place, or that of the innermost open [`Scope`].
    #[track_caller]
    #[inline]
    pub fn caller() -> Loc {
        match SCOPE.get() {
            Some(loc) => loc,
            None => Loc { place: Some(Location::caller()), gradient: false },
        }
    }

    /// `at`, or the place of the innermost open [`Scope`].
    pub fn resolve(at: &'static Location<'static>) -> Loc {
        SCOPE.get().unwrap_or(Loc { place: Some(at), gradient: false })
    }

    /// The same place, marked as a gradient's.
    pub fn gradient(self) -> Loc {
        Loc { gradient: true, ..self }
    }

    /// Whether it marks a gradient.
    pub fn is_gradient(&self) -> bool {
        self.gradient
    }

    /// The file, if known.
    pub fn file(&self) -> Option<&'static str> {
        self.place.map(|p| p.file())
    }

    /// The line, if known.
    pub fn line(&self) -> Option<u32> {
        self.place.map(|p| p.line())
    }
}

/// `mlp.rs:41`, `gradient of mlp.rs:41`, or `unknown place`.
impl std::fmt::Display for Loc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.gradient {
            f.write_str("gradient of ")?;
        }
        match self.place {
            Some(p) => write!(f, "{}:{}", p.file(), p.line()),
            None => f.write_str("unknown place"),
        }
    }
}

impl std::fmt::Debug for Loc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

thread_local! {
    static SCOPE: Cell<Option<Loc>> = const { Cell::new(None) };
}

/// Attributes every op emitted on this thread to one place while it lives.
pub struct Scope {
    previous: Option<Loc>,
}

impl Scope {
    /// Opens a scope at the caller's place, unless one is open already.
    #[track_caller]
    #[inline]
    pub fn enter() -> Scope {
        let previous = SCOPE.get();
        SCOPE.set(Some(Loc::caller()));
        Scope { previous }
    }

    /// Opens a scope at `loc`, even inside another one (gradients: the forward op's place).
    pub fn at(loc: Loc) -> Scope {
        let previous = SCOPE.get();
        SCOPE.set(Some(loc));
        Scope { previous }
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        SCOPE.set(self.previous);
    }
}
