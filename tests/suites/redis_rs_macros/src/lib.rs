//! `#[async_test]` as redis-rs's tests use it: the body runs to its end on a runtime, and a test
//! with an argument is given a multiplexed connection to a server of its own.
//!
//! Not here: their second run of each with a `ConnectionManager`.

use proc_macro::{Delimiter, TokenStream, TokenTree};

#[proc_macro_attribute]
pub fn async_test(_: TokenStream, item: TokenStream) -> TokenStream {
    let item: Vec<TokenTree> = item.into_iter().collect();
    let text = |tokens: &[TokenTree]| TokenStream::from_iter(tokens.iter().cloned()).to_string();
    let is = |token: &TokenTree, word: &str| token.to_string() == word;
    let start = item.iter().position(|token| is(token, "async")).expect("an async fn");
    let name = &item[start + 2];
    let given = item[start..].iter().find_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => {
            Some(!group.stream().is_empty())
        }
        _ => None,
    });
    let call = if given == Some(true) {
        format!(
            "let context = crate::support::TestContext::new();
             let connection = context.async_connection().await.unwrap();
             {name}(connection).await"
        )
    } else {
        format!("{name}().await")
    };
    format!(
        "{} #[test] fn {name}() {{
             {}
             crate::support::block_on_all(async move {{ {call} }}, crate::support::RuntimeType::Tokio);
         }}",
        text(&item[..start]),
        text(&item[start..]),
    )
    .parse()
    .expect("a function")
}
