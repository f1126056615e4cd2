//! The FUSE passthrough file system of Stockade.
