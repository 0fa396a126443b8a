use super::*;

const SHAPE: Shape = Shape {
    sparse: &[("sparse", &["kept"])],
    bulkheads: &["hold"],
};

fn read(text: &str) -> Element<'_> {
    parse(text.as_bytes(), SHAPE).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Names and texts of all children.
fn children<'e>(element: &'e Element<'_>) -> Vec<(&'e str, &'e str)> {
    element
        .children()
        .map(|child| (child.name(), child.text()))
        .collect()
}

#[test]
fn names_and_types_are_found_by_namespace() {
    const HEAD: &str = r#"xmlns:p="urn:vim25" xmlns:i="http://www.w3.org/2001/XMLSchema-instance""#;
    for (element, space, moref, xsi) in [
        ("<a/>", KnownNamespace::Other, None, None),
        (r#"<a xmlns="urn:vim25"/>"#, KnownNamespace::Vim, None, None),
        (r#"<a xmlns="urn:vim25 "/>"#, KnownNamespace::Other, None, None),
        ("<p:a/>", KnownNamespace::Vim, None, None),
        ("<q:a/>", KnownNamespace::Other, None, None),
        (r#"<p:a xmlns:p=""/>"#, KnownNamespace::Other, None, None),
        // A prefix may be declared behind what uses it.
        (
            r#"<a j:type="x:T" xmlns:j="http://www.w3.org/2001/XMLSchema-instance"/>"#,
            KnownNamespace::Other,
            None,
            Some("T"),
        ),
        (
            r#"<p:a i:type='a&amp;b' other="c">v</p:a>"#,
            KnownNamespace::Vim,
            None,
            Some("a&b"),
        ),
        (
            r#"<p:a type="Task" p:type="x" q:type="y">v</p:a>"#,
            KnownNamespace::Vim,
            Some("Task"),
            None,
        ),
        (r#"<p:a type="Task"></p:a>"#, KnownNamespace::Vim, None, None),
    ] {
        let text = format!("<root {HEAD}>{element}<p:after/></root>");
        let root = read(&text);
        let all: Vec<_> = root.children().collect();
        let [read, after] = all.as_slice() else {
            panic!("{text}: {} children", all.len());
        };
        assert_eq!(
            (read.name(), read.space(), read.xsi_type()),
            ("a", space, xsi),
            "{text}"
        );
        assert_eq!(read.moref(), moref.map(|kind| Moref::new(kind, "v")), "{text}");
        assert_eq!(
            after.space(),
            KnownNamespace::Vim,
            "{text}: declarations end with their element"
        );
    }
}

#[test]
fn element_text_excludes_child_text() {
    let root =
        read("<a>\n  one<b>t<!-- a comment -->w<![CDATA[<o>]]>&amp;&#x21;\r\n</b>two<c/><d> </d>three</a>");
    assert_eq!(root.text(), "");
    assert_eq!(children(&root), [("b", "tw<o>&!\n"), ("c", ""), ("d", " ")]);
}

#[test]
fn sparse_element_keeps_its_kept_children_alone() {
    let root =
        read("<sparse>1<other><kept>no</kept><sparse/></other><kept>yes</kept><other/><x:kept/></sparse>");
    assert_eq!(children(&root), [("kept", "yes"), ("kept", "")]);
}

/// Each breaks one limit.
fn oversized() -> Vec<(LimitBreach, String)> {
    let many = |what: &str, count: usize| what.repeat(count);
    let attributes: String = (0..70).map(|n| format!(" a{n}=''")).collect();
    vec![
        (LimitBreach::Text, many("x", MAX_TEXT + 1)),
        (LimitBreach::Text, format!("{}<![CDATA[]]>x", many("x", MAX_TEXT))),
        (
            LimitBreach::Depth,
            format!("{}{}", many("<a>", 70), many("</a>", 70)),
        ),
        (
            LimitBreach::Depth,
            format!("{}{}", many("<a>", 100_000), many("</a>", 100_000)),
        ),
        (LimitBreach::Elements, many("<a/>", MAX_ELEMENTS)),
        (LimitBreach::Attributes, format!("<a{attributes}/>")),
        (
            LimitBreach::Namespaces,
            format!(
                "{}<a xmlns:o='u' xmlns:p='u'/>{}",
                many("<a xmlns:a='u' xmlns:b='u'>", 32),
                many("</a>", 32)
            ),
        ),
        (LimitBreach::Reference, "<a>&custom;</a>".to_owned()),
        (LimitBreach::Reference, "<a>&#0;</a>".to_owned()),
    ]
}

#[test]
fn limit_exceeded_without_a_bulkhead_refuses_the_document() {
    for (breach, content) in oversized() {
        let text = format!("<a><b>{content}</b></a>");
        assert_eq!(
            parse(text.as_bytes(), SHAPE).err(),
            Some(XmlError::Beyond(breach)),
            "{breach}"
        );
    }
}

#[test]
fn limit_exceeded_costs_the_child_of_the_innermost_bulkhead() {
    for (breach, content) in oversized() {
        let text = format!(
            r#"<a xmlns="urn:vim25"><hold><hold><before/><broken xmlns="urn:other"><hold>{content}</hold></broken><after>1</after></hold>
               <next xmlns:n="u">2</next></hold></a>"#
        );
        let root = read(&text);
        let outer = root.child("hold").unwrap();
        let inner = outer.child("hold").unwrap();
        assert_eq!(
            (root.breach(), outer.breach(), inner.breach()),
            (None, None, Some(breach)),
            "{breach}"
        );
        assert_eq!(children(inner), [("before", ""), ("after", "1")], "{breach}");
        assert_eq!(
            inner.children().map(Element::space).collect::<Vec<_>>(),
            [KnownNamespace::Vim; 2],
            "{breach}"
        );
        assert_eq!(outer.text_of("next"), Some("2"), "{breach}");
    }
}

#[test]
fn elements_that_were_given_up_do_not_count() {
    let broken = format!(
        "<hold xmlns='urn:vim25'>{}</hold>",
        "<a>".repeat(70) + &"</a>".repeat(70)
    );
    let text = format!(
        "<r>{}{}</r>",
        broken.repeat(100),
        "<a/>".repeat(MAX_ELEMENTS - 101)
    );
    assert_eq!(read(&text).children().count(), MAX_ELEMENTS - 1);
}
