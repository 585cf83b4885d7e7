//! Devices, contexts, streams and events.

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys as cu;

use super::{Called, Failure, call, calls, driver, load};

/// The primary context of a device.
#[derive(Debug)]
pub struct Context {
    device: cu::CUdevice,
    raw: cu::CUcontext,
}

// SAFETY: the driver may be called from any thread; a context is made current on each before it is used.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub name: String,
    /// Compute capability, `(9, 0)` for an H100.
    pub capability: (u32, u32),
    /// Most shared memory of a thread block, by opt-in, in bytes.
    pub shared_bytes: u32,
    pub multiprocessors: u32,
    /// The version of CUDA that the driver supports, as `13000`.
    pub driver: u32,
}

/// Initialises the driver: its version, and the number of devices.
pub fn init() -> Called<(u32, u32)> {
    let (mut version, mut count) = (0 as c_int, 0 as c_int);
    // SAFETY: the symbols were found (`load::ready`), the pointers are to locals.
    unsafe {
        call!(cuInit(0))?;
        call!(cuDriverGetVersion(&mut version))?;
        call!(cuDeviceGetCount(&mut count))?;
    }
    Ok((version.max(0) as u32, count.max(0) as u32))
}

impl Context {
    /// Retains the primary context of device `ordinal`; [`init`] must have succeeded.
    pub fn new(ordinal: u32) -> Called<Arc<Context>> {
        let (mut device, mut raw) = (0, null_mut());
        // SAFETY: the pointers are to locals.
        unsafe {
            call!(cuDeviceGet(&mut device, ordinal as c_int))?;
            call!(cuDevicePrimaryCtxRetain(&mut raw, device))?;
        }
        let context = Arc::new(Context { device, raw });
        context.enter()?;
        Ok(context)
    }

    /// Makes the context current on this thread: before any other call.
    #[inline]
    pub fn enter(&self) -> Called<()> {
        // SAFETY: the context is retained while `self` lives.
        unsafe { call!(cuCtxSetCurrent(self.raw)) }
    }

    /// What the device is.
    pub fn facts(&self, driver_version: u32) -> Called<Facts> {
        let mut name = [0; 256];
        // SAFETY: the buffer is as long as said; the driver ends the name with a zero.
        unsafe { call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int - 1, self.device))? };
        // SAFETY: the last byte of the buffer is zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        use cu::CUdevice_attribute_enum as A;
        let attribute = |a: A| -> Called<u32> {
            let mut value = 0 as c_int;
            // SAFETY: the pointer is to a local.
            unsafe { call!(cuDeviceGetAttribute(&mut value, a, self.device))? };
            Ok(value.max(0) as u32)
        };
        Ok(Facts {
            name,
            capability: (
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            driver: driver_version,
        })
    }

    /// Lets the device's memory pool keep what is freed, instead of returning it at each synchronisation.
    pub fn keep_freed_memory(&self) -> Called<()> {
        let (mut pool, mut all) = (null_mut(), u64::MAX);
        // SAFETY: the attribute is a 64-bit number, and both pointers are to locals.
        unsafe {
            call!(cuDeviceGetDefaultMemPool(&mut pool, self.device))?;
            let attribute = cu::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            call!(cuMemPoolSetAttribute(pool, attribute, (&raw mut all).cast()))
        }
    }

    /// Gives what the device's memory pool keeps back to the system.
    pub fn trim(&self) -> Called<()> {
        let mut pool = null_mut();
        // SAFETY: the pointer is to a local; the pool is the device's.
        unsafe {
            call!(cuDeviceGetDefaultMemPool(&mut pool, self.device))?;
            call!(cuMemPoolTrimTo(pool, 0))
        }
    }

    /// Free and total bytes of the device.
    pub fn memory(&self) -> Called<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to locals; the context is current (the callers' order of calls).
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`. Nobody is left to hear of a failure.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

/// A stream of a context.
#[derive(Debug)]
pub struct Stream {
    pub(super) raw: cu::CUstream,
    owned: bool,
    context: Arc<Context>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// A stream that somebody else made, to be adopted by a [`Device`](crate::Device): an embedder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignStream(usize);

impl ForeignStream {
    /// The stream behind a `CUstream` or `cudaStream_t`.
    ///
    /// # Safety
    /// It must be a stream of the device's primary context, not one that is being captured, and outlive the device
    /// that adopts it and everything made there.
    pub unsafe fn from_raw(stream: *mut std::ffi::c_void) -> ForeignStream {
        ForeignStream(stream as usize)
    }
}

impl Stream {
    /// A new stream that does not wait for the default one.
    pub fn new(context: &Arc<Context>) -> Called<Stream> {
        let mut raw = null_mut();
        let flags = cu::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is to a local, the context is current.
        unsafe { call!(cuStreamCreate(&mut raw, flags))? };
        Ok(Stream { raw, owned: true, context: context.clone() })
    }

    /// Another's stream.
    pub fn adopt(stream: ForeignStream, context: &Arc<Context>) -> Stream {
        Stream { raw: stream.0 as cu::CUstream, owned: false, context: context.clone() }
    }

    /// Waits for all that was enqueued.
    pub fn synchronize(&self) -> Called<()> {
        // SAFETY: the stream is alive.
        unsafe { call!(cuStreamSynchronize(self.raw)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            let _ = self.context.enter();
            // SAFETY: made in `new`; the driver keeps it until its work is done.
            let _ = unsafe { call!(cuStreamDestroy_v2(self.raw)) };
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    raw: cu::CUevent,
    context: Arc<Context>,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event; `timed`: for [`Event::since`].
    pub fn new(context: &Arc<Context>, timed: bool) -> Called<Event> {
        use cu::CUevent_flags_enum as F;
        let flags = if timed { F::CU_EVENT_DEFAULT } else { F::CU_EVENT_DISABLE_TIMING } as u32;
        let mut raw = null_mut();
        // SAFETY: the pointer is to a local, the context is current.
        unsafe { call!(cuEventCreate(&mut raw, flags))? };
        Ok(Event { raw, context: context.clone() })
    }

    /// Marks the present end of the stream.
    pub fn record(&self, stream: &Stream) -> Called<()> {
        // SAFETY: both are alive.
        unsafe { call!(cuEventRecord(self.raw, stream.raw)) }
    }

    /// Whether the marked point was reached.
    pub fn reached(&self) -> Called<bool> {
        // SAFETY: the event is alive.
        match unsafe { cu::cuEventQuery(self.raw) } {
            status @ cu::CUresult::CUDA_ERROR_NOT_READY => {
                calls::note("cuEventQuery", status as u32);
                Ok(false)
            }
            status => driver("cuEventQuery", status).map(|()| true),
        }
    }

    /// Waits for the marked point.
    pub fn wait(&self) -> Called<()> {
        // SAFETY: the event is alive.
        unsafe { call!(cuEventSynchronize(self.raw)) }
    }

    /// Milliseconds of device time from `earlier` to this event; both must have been reached.
    pub fn since(&self, earlier: &Event) -> Called<f32> {
        type Elapsed = unsafe extern "C" fn(*mut f32, cu::CUevent, cu::CUevent) -> cu::CUresult;
        let missing = || Failure { call: "cuEventElapsedTime", code: 500, name: "missing".to_string() };
        let symbol = load::driver_symbol(c"cuEventElapsedTime").ok_or_else(missing)?;
        // SAFETY: this is the function's type in every version of the driver's API.
        let elapsed = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Elapsed>(symbol) };
        let mut time = 0.0;
        // SAFETY: the pointer is to a local, the events are alive.
        driver("cuEventElapsedTime", unsafe { elapsed(&mut time, earlier.raw, self.raw) })?;
        Ok(time)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made in `new`.
        let _ = unsafe { call!(cuEventDestroy_v2(self.raw)) };
    }
}
