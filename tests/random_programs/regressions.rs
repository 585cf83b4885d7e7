//! Programs that failed once, shrunk.
