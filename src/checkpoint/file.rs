//! Safetensors files: writing as a whole, reading with names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, View};

use crate::base::host::HostData;
use crate::base::{DType, HostValue, Result, Shape};
use crate::checkpoint::{NOTE, io};
use crate::tensor::{Device, Tensor};

/// What the format calls a dtype of ours.
fn to_format(dtype: DType) -> Option<Dtype> {
    Some(match dtype.name() {
        "bool" => Dtype::BOOL,
        "u8" => Dtype::U8,
        "i8" => Dtype::I8,
        "i32" => Dtype::I32,
        "i64" => Dtype::I64,
        "f16" => Dtype::F16,
        "bf16" => Dtype::BF16,
        "f32" => Dtype::F32,
        "f64" => Dtype::F64,
        _ => return None,
    })
}

/// Our dtype for one of the format's; `None`: we have none.
fn from_format(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&d| to_format(d) == Some(dtype))
}

/// The elements in the format's byte order, or back.
fn little_endian(mut bytes: Vec<u8>, dtype: DType) -> Vec<u8> {
    if cfg!(target_endian = "big") {
        bytes.chunks_mut(dtype.size()).for_each(|element| element.reverse());
    }
    bytes
}

/// A value as the format wants it.
struct Value {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for Value {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Writes named values and metadata to `path`.
pub(super) fn write(path: &Path, values: &[(&str, Tensor)], metadata: BTreeMap<String, String>) -> Result<()> {
    let mut data = Vec::with_capacity(values.len());
    for (name, t) in values {
        let Some(dtype) = to_format(t.dtype()) else {
            return Err(io(path, format!("{name} is {}, which the format does not have", t.dtype())));
        };
        let bytes = little_endian(t.bytes()?, t.dtype());
        data.push((*name, Value { dtype, shape: t.dims().to_vec(), bytes }));
    }
    let metadata = (!metadata.is_empty()).then(|| metadata.into_iter().collect());
    let bytes = safetensors::serialize(data, metadata).map_err(|e| io(path, format!("cannot be written: {e}")))?;
    let beside = beside(path)?;
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, path)
    };
    let result = write();
    if result.is_err() {
        let _ = fs::remove_file(&beside);
    }
    result.map_err(|e: std::io::Error| io(path, format!("cannot be written: {e}")))?;
    // The new name is on the disk once its folder is; where that cannot be asked for, the file is whole all the same.
    if let Ok(folder) = File::open(folder(path)) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name in the same folder that nothing else has.
fn beside(path: &Path) -> Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        return Err(io(path, "cannot be written: it names no file"));
    };
    let (process, n) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
    Ok(folder(path).join(format!(".{}.{process}-{n}.tmp", name.to_string_lossy())))
}

/// The bytes of a file.
pub(super) fn bytes(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| io(path, format!("cannot be read: {e}")))
}

/// What is in a file.
pub(super) struct Content<'a> {
    path: &'a Path,
    tensors: BTreeMap<String, TensorView<'a>>,
    pub metadata: BTreeMap<String, String>,
}

/// A tensor of a file; prints as `f32[2,3]`.
pub(super) struct Found<'a>(&'a TensorView<'a>);

impl Found<'_> {
    /// Whether it is of this type.
    pub fn is(&self, dtype: DType, shape: Shape) -> bool {
        from_format(self.0.dtype()) == Some(dtype) && self.0.shape() == shape.dims()
    }
}

impl std::fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dims: Vec<String> = self.0.shape().iter().map(usize::to_string).collect();
        match from_format(self.0.dtype()) {
            Some(dtype) => write!(f, "{dtype}[{}]", dims.join(",")),
            None => write!(f, "{}[{}]", self.0.dtype(), dims.join(",")),
        }
    }
}

impl<'a> Content<'a> {
    pub fn parse(path: &'a Path, bytes: &'a [u8]) -> Result<Content<'a>> {
        let broken = |e| io(path, format!("is no safetensors file, or not all of it ({} bytes): {e}", bytes.len()));
        let tensors = SafeTensors::deserialize(bytes).map_err(broken)?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(broken)?;
        let metadata = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(Content { path, tensors: tensors.tensors().into_iter().collect(), metadata })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn find(&self, name: &str) -> Option<Found<'_>> {
        self.tensors.get(name).map(Found)
    }

    /// The tensor `name` on `device`.
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        let Some(view) = self.tensors.get(name) else {
            return Err(io(self.path, format!("missing {name}")));
        };
        let Some(dtype) = from_format(view.dtype()) else {
            let known = DType::names();
            return Err(io(self.path, format!("{name} is {}, which is none of {known}", view.dtype())));
        };
        let shape = Shape::new(view.shape()).map_err(|e| io(self.path, format!("{name}: {e}")))?;
        let mut bytes = little_endian(view.data().to_vec(), dtype);
        if dtype == DType::Bool {
            bytes.iter_mut().for_each(|b| *b = (*b != 0) as u8);
        }
        Tensor::from_host(&HostValue::new(shape, HostData::from_bytes(dtype, &bytes)), device)
    }

    pub fn notes(&self) -> BTreeMap<String, String> {
        let note = |(k, v): (&String, &String)| Some((k.strip_prefix(NOTE)?.to_string(), v.clone()));
        self.metadata.iter().filter_map(note).collect()
    }
}
