//! `x.i((0, .., 2..5))`: elements and ranges of several axes at once.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::base::location::Scope;
use crate::base::{Error, Loc, Result};
use crate::tensor::Tensor;
use crate::tensor::recorder::here;

/// What [`Tensor::i`] takes of one axis.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
/// use stepgraph::tensor::Pick;
/// let column = x.i((Pick::from(..), Pick::At(-1)))?;
/// assert_eq!(column.to_string(), "[3 6]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// One element (below zero: counted from the end); the axis disappears.
    At(isize),
    /// A range of elements.
    Range(Bound<usize>, Bound<usize>),
}

impl From<isize> for Pick {
    fn from(at: isize) -> Pick {
        Pick::At(at)
    }
}
impl From<i32> for Pick {
    fn from(at: i32) -> Pick {
        Pick::At(at as isize)
    }
}
impl From<usize> for Pick {
    fn from(at: usize) -> Pick {
        // Beyond isize it is out of range, whatever the axis.
        Pick::At(isize::try_from(at).unwrap_or(isize::MAX))
    }
}
macro_rules! ranges {
    ($($range:ty),*) => { $(impl From<$range> for Pick {
        fn from(range: $range) -> Pick {
            Pick::Range(range.start_bound().cloned(), range.end_bound().cloned())
        }
    })* };
}
ranges!(Range<usize>, RangeFrom<usize>, RangeTo<usize>, RangeInclusive<usize>, RangeToInclusive<usize>);

impl From<RangeFull> for Pick {
    fn from(_: RangeFull) -> Pick {
        Pick::Range(Bound::Unbounded, Bound::Unbounded)
    }
}

/// One [`Pick`] or a tuple of them, for the first axes.
///
/// ```
/// # use stepgraph::*;
/// # fn main() -> Result<()> {
/// # let device = &Device::cpu();
/// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
/// // One pick, or a tuple of them for the first axes.
/// assert_eq!(x.i(1)?.to_string(), "[4 5 6]");
/// assert_eq!(x.i((.., 1..3))?.to_string(), "[[2 3]\n [5 6]]");
/// # Ok(())
/// # }
/// ```
pub trait Picks {
    /// In the order of the axes.
    fn picks(self) -> Vec<Pick>;
}

impl<P: Into<Pick>> Picks for P {
    fn picks(self) -> Vec<Pick> {
        vec![self.into()]
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Into<Pick>),*> Picks for ($($name,)*) {
            fn picks(self) -> Vec<Pick> {
                #[allow(non_snake_case)]
                let ($($name,)*) = self;
                vec![$($name.into()),*]
            }
        }
    };
}
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);

impl Tensor {
    /// Elements and ranges of the first axes, the others whole: a number takes one element (and its axis away), a range a part.
    /// A view. Where they begin are host scalars: inside a step they may change from call to call.
    ///
    /// ```
    /// # use stepgraph::{Device, Result, Tensor};
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], &Device::cpu())?;
    /// assert_eq!(x.i(1)?.to_vec::<f32>()?, [4.0, 5.0, 6.0]);
    /// assert_eq!(x.i((.., 1..))?.to_vec::<f32>()?, [2.0, 3.0, 5.0, 6.0]);
    /// assert_eq!(x.i((0, -1))?.item::<f32>()?, 3.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: more picks than axes; elements or ranges outside of an axis.
    #[track_caller]
    pub fn i(&self, picks: impl Picks) -> Result<Tensor> {
        let at = here();
        let _scope = Scope::enter();
        let picks = picks.picks();
        let wrong = |want: String, given: String| Err(Error::argument("i", want, given).at(Loc::resolve(at)));
        if picks.len() > self.rank() {
            return wrong(format!("at most {} picks for shape {}", self.rank(), self.shape()), picks.len().to_string());
        }
        let (mut out, mut gone) = (self.clone(), 0u8);
        for (axis, pick) in picks.into_iter().enumerate() {
            let have = self.dims()[axis];
            let (from, to) = match pick {
                Pick::At(i) => {
                    let Some(from) =
                        (if i < 0 { have.checked_add_signed(i) } else { Some(i as usize) }).filter(|&from| from < have)
                    else {
                        return wrong(format!("an element of the {have} of axis {axis}"), i.to_string());
                    };
                    gone |= 1 << axis;
                    (from, from + 1)
                }
                Pick::Range(from, to) => {
                    let lo = match from {
                        Bound::Included(v) => v,
                        Bound::Excluded(v) => v.saturating_add(1),
                        Bound::Unbounded => 0,
                    };
                    let hi = match to {
                        Bound::Included(v) => v.saturating_add(1),
                        Bound::Excluded(v) => v,
                        Bound::Unbounded => have,
                    };
                    if lo > hi || hi > have {
                        return wrong(
                            format!("a range within the {have} elements of axis {axis}"),
                            format!("{lo}..{hi}"),
                        );
                    }
                    (lo, hi)
                }
            };
            if (from, to) != (0, have) {
                out = out.slice(axis as isize, from, to - from)?;
            }
        }
        if gone == 0 { Ok(out) } else { out.reshape(out.shape().reduce(gone, false)) }
    }

    /// [`Tensor::slice`] by another name: `len` elements of `axis` from `start`.
    ///
    /// ```
    /// # use stepgraph::*;
    /// # fn main() -> Result<()> {
    /// # let device = &Device::cpu();
    /// let x = Tensor::new([[1i64, 2, 3], [4, 5, 6]], device)?;
    /// assert_eq!(x.narrow(1, 1, 2)?.to_string(), "[[2 3]\n [5 6]]");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, len: usize) -> Result<Tensor> {
        self.slice(axis, start, len)
    }
}
