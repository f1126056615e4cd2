//! Carries out sequences of file operations and writes down what happened; see `stockade_tests::model`.

fn main() {
    stockade_tests::model::main();
}
