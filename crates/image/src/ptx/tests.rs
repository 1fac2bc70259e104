use super::*;

const HEADER: &str = ".version 8.7\n.target sm_90a, debug\n.address_size 64\n";

/// Offsets and sizes of all parameters.
type Places = Vec<(u32, u32)>;

fn scan_body(body: &str) -> Result<(Places, Vec<Variable>), Error> {
    let text = format!("{HEADER}{body}");
    let declarations = scan(&text)?;
    assert_eq!(declarations.header.version, (8, 7));
    assert_eq!(declarations.header.target.to_string(), "sm_90a");
    let params = declarations.entries.iter().flat_map(|entry| &entry.params);
    Ok((
        params.map(|param| (param.offset, param.size)).collect(),
        declarations.variables,
    ))
}

#[test]
fn parameters_of_every_spelling() {
    for (params, expected) in [
        ("", vec![]),
        (".param .u8 a, .param .u64 b", vec![(0, 1), (8, 8)]),
        (".param.u32 a,.param.f16x2 b", vec![(0, 4), (4, 4)]),
        (
            ".param .u64 .ptr .global .align 64 p, .param .b8 tag",
            vec![(0, 8), (8, 1)],
        ),
        (
            ".param .u64 .ptr .align 1 p, .param .align 16 .b8 s[0x14]",
            vec![(0, 8), (16, 20)],
        ),
        (
            ".param .b8 a[3], .param .align 4 .b8 b[2][3]",
            vec![(0, 3), (4, 6)],
        ),
        (
            ".param .v4 .f32 v /* ) */, .param .b16 h // )\n",
            vec![(0, 16), (16, 2)],
        ),
        (".param .texref t, .param .b128 q", vec![(0, 8), (16, 16)]),
    ] {
        let (found, _) = scan_body(&format!(".visible .entry k({params}) {{ ret; }}")).unwrap();
        assert_eq!(found, expected, "{params}");
    }
}

#[test]
fn variables_of_every_spelling() {
    for (text, expected) in [
        (".global .u32 a;", vec![("a", Space::Global, 4)]),
        (
            ".visible .const .align 8 .b8 a[2][3] = {{1,2,3},{4,5,6}};",
            vec![("a", Space::Constant, 6)],
        ),
        (
            ".global .u32 a = -1, b[] = {1, -2, c+4}, d;",
            vec![
                ("a", Space::Global, 4),
                ("b", Space::Global, 12),
                ("d", Space::Global, 4),
            ],
        ),
        (
            ".global .b16 a[][2] = {{1,2},{3,4},{5,6}};",
            vec![("a", Space::Global, 12)],
        ),
        (
            ".global .attribute(.managed) .f64 m;",
            vec![("m", Space::Managed, 8)],
        ),
        (
            ".global .u64 p[2] = {generic(a), mask(0xff, b)};",
            vec![("p", Space::Global, 16)],
        ),
        (
            ".extern .global .u32 elsewhere; .global .u8 here;",
            vec![("here", Space::Global, 1)],
        ),
        (
            ".global .texref t; .global .samplerref s = {addr_mode_0 = clamp};",
            vec![],
        ),
        (".extern .shared .align 16 .b8 s[]; .shared .u32 t;", vec![]),
        (
            ".func (.param .b32 r) f(.param .u64 .ptr .global .align 4 p) { .global .u32 inner; }",
            vec![],
        ),
    ] {
        let (_, variables) = scan_body(text).unwrap();
        let found: Vec<_> = variables
            .iter()
            .map(|v| (v.name.as_str(), v.space, v.bytes))
            .collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn bodies_comments_and_strings_hide_nothing_else() {
    let (params, _) = scan_body(
        ".file 1 \"a } \\\" { b.cu\"\n/* .entry no( */ // .entry no(\n.extern .entry later(.param .u8 a);\n\
         .entry first(.param .u8 a) .maxntid 1, 2 .pragma \"nounroll\"; { { .reg .b32 %r; } /* } */ }\n\
         .section .debug_str { L: .b8 1 }\n.weak .entry second(.param .u16 b) .noreturn { call f, (a); }",
    )
    .unwrap();
    assert_eq!(params, [(0, 1), (0, 2)]);
}

#[test]
fn errors_name_the_line_and_what_was_expected() {
    for (body, line, expected) in [
        (".entry", 4, "the name of an entry"),
        (
            ".entry k(.param .u32 a",
            4,
            "a comma or the end of the parameters",
        ),
        ("\n.entry k(.reg .u32 a) {}", 5, "the directive .param"),
        (".entry k(.param .u31 a) {}", 4, "a type"),
        (".entry k(.param a) {}", 4, "a type before the name"),
        (
            ".entry k(.param .align 3 .b8 a) {}",
            4,
            "an alignment that is a power of two",
        ),
        (".entry k(.param .b8 a[]) {}", 4, "an array with a size"),
        (
            ".entry k(.param .b8 a[4294967295][4294967295]) {}",
            4,
            "a parameter below 4 GiB",
        ),
        (
            ".entry k(.param .b64 a[4000000000][4000000000]) {}",
            4,
            "an array that fits in memory",
        ),
        (".entry k()\n", 5, "the body of an entry"),
        (".entry k() {\n", 5, "a closing bracket or brace"),
        (".global .u32 a", 4, "a comma or semicolon after a variable"),
        (".global .u32 a = {1,", 4, "the end of an initializer"),
        (
            ".global .u32 a = };",
            4,
            "an opening brace before the closing one",
        ),
        ("/* no end", 4, "the end of a comment"),
        (".file 1 \"no end \\", 4, "the end of a string"),
    ] {
        let error = scan_body(body).unwrap_err();
        assert!(
            matches!(error, Error::Ptx { line: l, expected: e, .. } if (l, e) == (line, expected)),
            "{body}: {error:?}"
        );
    }
}

#[test]
fn a_text_that_names_no_address_size_has_32_bit_addresses() {
    assert_eq!(
        scan_header(".version 7.0\n.target sm_50\n.entry k() {}")
            .unwrap()
            .address_bits,
        32
    );
    assert!(scan_header(".version 7.0\n.target sm_50\n.address_size 16").is_err());
    assert!(scan_header(".target sm_50\n.version 7.0").is_err());
}
