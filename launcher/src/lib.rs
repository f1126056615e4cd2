//! The launcher of Stockade.
