//! Prints `docs/coverage.md`.

fn main() -> Result<(), outboard_api::decl::DeclError> {
    print!("{}", outboard_api::coverage::markdown()?);
    Ok(())
}
