//! Strided views of a buffer.

use crate::base::shape::{MAX_RANK, Shape};

/// Where the elements of a tensor lie in its buffer: strides and offset, in elements.
/// In C order, since compiled guards read it.
#[derive(Clone, Copy, Eq, Debug)]
#[repr(C)]
pub struct Layout {
    pub shape: Shape,
    pub strides: [isize; MAX_RANK],
    pub offset: isize,
}

impl PartialEq for Layout {
    #[inline]
    fn eq(&self, other: &Layout) -> bool {
        self.shape == other.shape
            && self.offset == other.offset
            && (0..self.shape.rank()).all(|a| self.strides[a] == other.strides[a])
    }
}

impl std::hash::Hash for Layout {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.shape.hash(state);
        self.strides().hash(state);
        self.offset.hash(state);
    }
}

impl Layout {
    /// Row-major from the buffer's start.
    pub fn contiguous(shape: Shape) -> Layout {
        Layout { shape, strides: shape.strides(), offset: 0 }
    }

    /// Strides of the axes there are.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.shape.rank()]
    }

    /// Whether the elements lie alike, wherever in the buffer they begin: what plans depend on.
    #[inline]
    pub fn same_strides(&self, other: &Layout) -> bool {
        self.shape == other.shape && (0..self.shape.rank()).all(|a| self.strides[a] == other.strides[a])
    }

    /// The same strides, the element that lies lowest at the buffer's start. (With strides below zero that is not the
    /// first one, so the offset need not be 0.)
    pub fn from_start(&self) -> Layout {
        let back = |(a, &d): (usize, &usize)| (d.max(1) as isize - 1) * self.strides[a].min(0);
        let offset = -self.shape.dims().iter().enumerate().map(back).sum::<isize>();
        Layout { offset, ..*self }
    }

    /// Whether elements lie row-major without gaps (the offset does not matter).
    pub fn is_contiguous(&self) -> bool {
        let expected = self.shape.strides();
        self.shape.numel() <= 1
            || self.shape.dims().iter().enumerate().all(|(a, &d)| d == 1 || self.strides[a] == expected[a])
    }

    /// Smallest and largest element index touched (inclusive), `None` if there are no elements.
    pub fn span(&self) -> Option<(isize, isize)> {
        if self.shape.numel() == 0 {
            return None;
        }
        let (mut lo, mut hi) = (self.offset, self.offset);
        for (a, &d) in self.shape.dims().iter().enumerate() {
            let reach = (d as isize - 1) * self.strides[a];
            if reach < 0 { lo += reach } else { hi += reach }
        }
        Some((lo, hi))
    }

    /// The view of the same elements with axes reordered: axis `a` of the result is `order[a]`.
    pub fn permute(&self, order: &[usize]) -> Layout {
        let mut dims = [0; MAX_RANK];
        let mut strides = [0; MAX_RANK];
        for (a, &o) in order.iter().enumerate() {
            dims[a] = self.shape[o];
            strides[a] = self.strides[o];
        }
        let shape = Shape::new(&dims[..order.len()]).unwrap_or(Shape::SCALAR);
        Layout { shape, strides, offset: self.offset }
    }

    /// The view stretched to `shape` (trailing axes aligned; stretched axes get stride 0).
    pub fn expand(&self, shape: Shape) -> Layout {
        let mut strides = [0; MAX_RANK];
        let lead = shape.rank() - self.shape.rank();
        for a in 0..self.shape.rank() {
            let stretched = self.shape[a] == 1 && shape[lead + a] != 1;
            strides[lead + a] = if stretched { 0 } else { self.strides[a] };
        }
        Layout { shape, strides, offset: self.offset }
    }

    /// The view of `len` elements of `axis` from `start` up, every `step`-th; a step below zero gives them in reverse, the
    /// one at `start` last.
    pub fn slice(&self, axis: usize, start: usize, len: usize, step: isize) -> Layout {
        let mut dims = [0; MAX_RANK];
        dims[..self.shape.rank()].copy_from_slice(self.shape.dims());
        dims[axis] = len;
        let mut out = *self;
        out.shape = Shape::new(&dims[..self.shape.rank()]).unwrap_or(self.shape);
        let first = if step < 0 { start as isize + (len as isize - 1).max(0) * -step } else { start as isize };
        out.offset += first * self.strides[axis];
        out.strides[axis] *= step;
        out
    }

    /// The view in which `axis` became two, `[count, size]`: element (i, w) lies `i * step + w * dilation` along it.
    /// Ranks stay within [`MAX_RANK`] only if the caller sees to it.
    pub fn window(&self, axis: usize, [count, size]: [usize; 2], [step, dilation]: [usize; 2]) -> Layout {
        let (rank, stride) = (self.shape.rank(), self.strides[axis]);
        let mut dims = [0; MAX_RANK + 1];
        dims[..rank].copy_from_slice(self.shape.dims());
        dims.copy_within(axis + 1..rank, axis + 2);
        (dims[axis], dims[axis + 1]) = (count, size);
        let mut strides = self.strides;
        if rank < MAX_RANK {
            strides.copy_within(axis + 1..rank, axis + 2);
            (strides[axis], strides[axis + 1]) = (stride * step as isize, stride * dilation as isize);
        }
        let shape = Shape::new(&dims[..=rank]).unwrap_or(self.shape);
        Layout { shape, strides, offset: self.offset }
    }

    /// The same elements as `shape` without moving them, if strides can express it.
    pub fn reshape(&self, shape: Shape) -> Option<Layout> {
        if shape.numel() != self.shape.numel() {
            return None;
        }
        if self.is_contiguous() || shape.numel() == 0 {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape) });
        }
        // Drop length-1 axes, then match runs of old axes against runs of new ones.
        let old: Vec<(usize, isize)> =
            (0..self.shape.rank()).filter(|&a| self.shape[a] != 1).map(|a| (self.shape[a], self.strides[a])).collect();
        let mut strides = [0isize; MAX_RANK];
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (mut have, mut want, start, first) = (old[i].0, 1usize, i, j);
            i += 1;
            while j < shape.rank() && want < have {
                want *= shape[j];
                j += 1;
                while have < want {
                    if i == old.len() {
                        return None;
                    }
                    have *= old[i].0;
                    i += 1;
                }
            }
            if have != want {
                return None;
            }
            // The run of old axes must itself be evenly strided.
            if (start + 1..i).any(|a| old[a - 1].1 != old[a].1 * old[a].0 as isize) {
                return None;
            }
            let mut step = old[i - 1].1;
            for b in (first..j).rev() {
                strides[b] = step;
                step *= shape[b] as isize;
            }
        }
        Some(Layout { shape, strides, offset: self.offset })
    }
}
