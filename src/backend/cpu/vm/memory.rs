//! Accesses that are not contiguous tiles, and coordinates: one piece of the group's last axis at a time.

use crate::backend::cpu::vm::code::{Kind, TILE};
use crate::backend::cpu::vm::drive::Run;
use crate::backend::cpu::vm::program::Operand;
use crate::backend::cpu::vm::space::{Class, Few, Role, Stream};
use crate::base::DType;
use crate::base::dtype::{bf16, f16};

/// Consecutive lanes that lie along the last axis of the group.
struct Piece<'a> {
    /// First lane.
    lane: usize,
    len: usize,
    /// Coordinates of the first lane.
    at: &'a [usize],
}

/// Calls `each` for the pieces of the `lanes` points from `first` on.
fn pieces(group: &Few<usize>, first: usize, lanes: usize, mut each: impl FnMut(Piece<'_>)) {
    // A group without points still has the one lane of a stage.
    let Some((&last, outer)) = group.split_last().filter(|_| group.iter().all(|&d| d > 0)) else {
        return each(Piece { lane: 0, len: lanes, at: &[] });
    };
    let mut at = [0usize; 16];
    let at = &mut at[..group.len()];
    let mut rest = first;
    for (a, &len) in at.iter_mut().zip(group).rev() {
        *a = rest % len;
        rest /= len;
    }
    let mut lane = 0;
    loop {
        let len = (last - at[outer.len()]).min(lanes - lane);
        each(Piece { lane, len, at });
        lane += len;
        if lane == lanes {
            return;
        }
        at[outer.len()] = 0;
        for axis in (0..outer.len()).rev() {
            at[axis] += 1;
            if at[axis] < outer[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}

impl Stream {
    /// The part of a piece that the guards on group axes let through: lanes from and to, relative to it.
    fn clip(&self, piece: &Piece<'_>) -> (usize, usize) {
        let (mut from, mut to) = (0, piece.len as i64);
        for b in self.bounds.iter().filter(|b| b.role == Role::Group) {
            let c = piece.at[b.axis] as i64;
            if b.axis + 1 == piece.at.len() {
                from = from.max(b.lo - c);
                to = to.min(b.hi - c);
            } else if c < b.lo || c >= b.hi {
                return (0, 0);
            }
        }
        if from < to { (from as usize, to as usize) } else { (0, 0) }
    }

    fn offset(&self, piece: &Piece<'_>) -> isize {
        piece.at.iter().zip(&self.group).map(|(&c, &s)| c as i64 * s).sum::<i64>() as isize
    }

    fn stride(&self) -> isize {
        self.group.last().map_or(0, |&s| s as isize)
    }
}

/// Copies `len` elements, `from` bytes apart in steps of `stride`, converting each.
///
/// # Safety
/// Source elements and `len` destination elements are valid.
#[inline(always)]
unsafe fn copy<S: Copy, D: Copy>(src: *const u8, stride: isize, dst: *mut D, len: usize, to: impl Fn(S) -> D) {
    // SAFETY: the caller's contract; memory of tensors is aligned for its elements, but nothing here relies on it.
    unsafe {
        if stride == size_of::<S>() as isize {
            let src = src.cast::<S>();
            for i in 0..len {
                dst.add(i).write_unaligned(to(src.add(i).read_unaligned()));
            }
        } else if stride == 0 {
            if len > 0 {
                let v = to(src.cast::<S>().read_unaligned());
                for i in 0..len {
                    dst.add(i).write_unaligned(v);
                }
            }
        } else {
            let mut p = src;
            for i in 0..len {
                dst.add(i).write_unaligned(to(p.cast::<S>().read_unaligned()));
                p = p.wrapping_offset(stride);
            }
        }
    }
}

/// Runs `$body` with `$S` the type of an element of `$dtype` in memory, `$D` that of its lane in a tile, and the
/// conversions `$widen` and `$narrow` between them.
macro_rules! format_of {
    ($dtype:expr, $S:ident, $D:ident, $widen:ident, $narrow:ident => $body:expr) => {{
        macro_rules! format {
            ($s:ty, $d:ty, $w:expr, $n:expr) => {{
                type $S = $s;
                type $D = $d;
                #[allow(unused)]
                let ($widen, $narrow) = ($w as fn($s) -> $d, $n as fn($d) -> $s);
                $body
            }};
        }
        match $dtype {
            DType::F32 => format!(u32, u32, |v| v, |v| v),
            DType::I64 | DType::F64 => format!(u64, u64, |v| v, |v| v),
            DType::Bool => format!(u8, u32, |v| 0u32.wrapping_sub((v != 0) as u32), |v| (v & 1) as u8),
            DType::U8 => format!(u8, u64, |v| v as u64, |v| v as u8),
            DType::I8 => format!(i8, u64, |v| v as i64 as u64, |v| v as i8),
            DType::I32 => format!(i32, u64, |v| v as i64 as u64, |v| v as i32),
            DType::BF16 => format!(u16, u32, |v| (v as u32) << 16, |v| bf16::from_f32(f32::from_bits(v)).to_bits()),
            DType::F16 => {
                format!(u16, u32, |v| f16::from_bits(v).to_f32().to_bits(), |v| f16::from_f32(f32::from_bits(v))
                    .to_bits())
            }
        }
    }};
}

impl Run<'_> {
    /// Whether the guards on axes outside the group hold.
    fn open(&self, s: &Stream) -> bool {
        s.bounds.iter().all(|b| {
            let c = match b.role {
                Role::Group => return true,
                Role::Loop => self.at[b.axis],
                Role::Inner => self.inner[b.axis],
            } as i64;
            b.lo <= c && c < b.hi
        })
    }

    /// Loads the lanes of an access into a tile.
    ///
    /// # Safety
    /// The launch's pointers are valid; `into` is a tile's entry.
    pub(super) unsafe fn load(&mut self, stream: u32, into: u16) {
        // SAFETY: the same contract.
        unsafe { self.load_to(stream, self.entry(into)) }
    }

    /// Loads the lanes of an access to `dst`, which has room for them.
    ///
    /// # Safety
    /// The launch's pointers are valid.
    pub(super) unsafe fn load_to(&mut self, stream: u32, dst: *mut u8) {
        let s = &self.program.space.streams[stream as usize];
        let size = s.lane_bytes();
        // SAFETY: the tile has room for `lanes` lanes; loads stay within guards, so within the argument.
        unsafe {
            if !s.bounds.is_empty() {
                dst.write_bytes(0, self.lanes * size);
                if !self.open(s) {
                    return;
                }
            }
            let base = self.address(stream);
            let stride = s.stride();
            if s.class == Class::PerRow {
                let row = self.program.space.row;
                let src = base.wrapping_add(self.first / row * s.dtype.size());
                for r in 0..self.lanes / row {
                    let (src, dst) = (src.wrapping_add(r * s.dtype.size()), dst.add(r * row * size));
                    format_of!(s.dtype, S, D, widen, narrow => copy::<S, D>(src, 0, dst.cast(), row, widen));
                }
                return;
            }
            pieces(&self.program.space.group, self.first, self.lanes, |piece| {
                let (from, to) = s.clip(&piece);
                let src = base.wrapping_offset(s.offset(&piece) + from as isize * stride);
                let (dst, len) = (dst.add((piece.lane + from) * size), to - from);
                format_of!(s.dtype, S, D, widen, narrow => copy::<S, D>(src, stride, dst.cast(), len, widen))
            });
        }
    }

    /// Stores lanes through an access.
    ///
    /// # Safety
    /// As [`Run::load`]; `value` is a tile or word of the stored type.
    pub(super) unsafe fn store(&mut self, stream: u32, value: Operand) {
        let s = &self.program.space.streams[stream as usize];
        let src = self.entry(value.entry).cast_const();
        let size = s.lane_bytes();
        let step = if value.kind == Kind::Tile { size } else { 0 };
        let base = self.address(stream);
        let stride = s.stride();
        // SAFETY: the caller's contract.
        unsafe {
            let put = |mut p: *mut u8, stride: isize, mut v: *const u8, step: usize, len: usize| {
                format_of!(s.dtype, S, D, widen, narrow => for _ in 0..len {
                    p.cast::<S>().write_unaligned(narrow(v.cast::<D>().read_unaligned()));
                    p = p.wrapping_offset(stride);
                    v = v.wrapping_add(step);
                })
            };
            if s.class == Class::PerRow {
                let (row, size) = (self.program.space.row, s.dtype.size());
                let p = base.wrapping_add(self.first / row * size);
                return put(p, size as isize, src, row * step, self.lanes / row);
            }
            pieces(&self.program.space.group, self.first, self.lanes, |piece| {
                put(base.wrapping_offset(s.offset(&piece)), stride, src.add(piece.lane * step), step, piece.len);
            });
        }
    }

    /// Loads elements at computed indices; an index out of range is clamped and flagged.
    ///
    /// # Safety
    /// As [`Run::load`]; `index` is a tile or word of 64 bits.
    pub(super) unsafe fn gather(&mut self, stream: u32, index: Operand, step: i64, len: i64, into: u16) {
        let s = &self.program.space.streams[stream as usize];
        let dst = self.entry(into);
        let indices = self.entry(index.entry).cast::<i64>();
        let base = self.address(stream);
        let stride = s.stride();
        let mut flag = false;
        let mut element = |i: i64| {
            let clamped = i.clamp(0, len - 1);
            flag |= clamped != i;
            (clamped * step) as isize
        };
        // SAFETY: the caller's contract; the clamped index is within the argument.
        unsafe {
            pieces(&self.program.space.group, self.first, self.lanes, |piece| {
                let src = base.wrapping_offset(s.offset(&piece));
                let lane = piece.lane;
                // One index for the whole piece is the common case of a row.
                let first = if index.kind == Kind::Word { indices } else { indices.add(lane) };
                let one = first.read_unaligned();
                if index.kind == Kind::Word || (1..piece.len).all(|i| first.add(i).read_unaligned() == one) {
                    let src = src.wrapping_offset(element(one));
                    return format_of!(s.dtype, S, D, widen, narrow => {
                        copy::<S, D>(src, stride, dst.cast::<D>().add(lane), piece.len, widen)
                    });
                }
                format_of!(s.dtype, S, D, widen, narrow => for i in 0..piece.len {
                    let at = element(indices.add(lane + i).read_unaligned());
                    let src = src.wrapping_offset(at + i as isize * stride);
                    *dst.cast::<D>().add(lane + i) = widen(src.cast::<S>().read_unaligned());
                })
            });
        }
        self.flag |= flag;
    }

    /// Coordinates along an axis into a 64-bit tile.
    ///
    /// # Safety
    /// `into` is a 64-bit tile's entry.
    pub(super) unsafe fn index(&mut self, role: Role, axis: usize, into: u16) {
        // SAFETY: the tile has TILE lanes of 64 bits and `lanes` is at most that.
        let dst = unsafe { std::slice::from_raw_parts_mut(self.entry(into).cast::<i64>(), TILE) };
        let dst = &mut dst[..self.lanes];
        match role {
            Role::Loop => dst.fill(self.at[axis] as i64),
            Role::Inner => dst.fill(self.inner[axis] as i64),
            Role::Group => pieces(&self.program.space.group, self.first, self.lanes, |piece| {
                let c = piece.at[axis] as i64;
                let dst = &mut dst[piece.lane..piece.lane + piece.len];
                if axis + 1 == piece.at.len() {
                    (c..).zip(dst).for_each(|(c, d)| *d = c);
                } else {
                    dst.fill(c);
                }
            }),
        }
    }
}
