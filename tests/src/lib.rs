//! The harness that the suite uses.
