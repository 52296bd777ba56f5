//! Attacks on the key: what one client makes the sandbox say must not be served to another.

use super::*;

/// An application that says what it was told about itself, as applications do that write links.
async fn reflecting(vary: &'static str) -> Origin {
    scripted(move |exchange| async move {
        let names = ["host", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix", "x-tenant"];
        let request = &exchange.request;
        let said: Vec<String> =
            names.iter().map(|name| format!("{name}={:?}", request.headers.all(name))).collect();
        let body = format!("{} {} {}", exchange.origin(), request.target, said.join(" "));
        exchange.reply(200, &[PUBLIC, ("Vary", vary)], body).await
    })
    .await
}

type Request<'a> = (&'a str, Vec<(&'a str, &'a str)>);

/// One after the other, twice over: each request gets the response to itself, from the application
/// and then from the store.
async fn told_apart(env: &Env, requests: &[Request<'_>]) {
    let mut responses = Vec::new();
    for (target, fields) in requests {
        let response = env.raw("GET", target, fields, "").await;
        is_miss(&response);
        responses.push(response.text());
    }
    for ((target, fields), response) in requests.iter().zip(&responses) {
        is_hit(&env.raw("GET", target, fields, "").await, response);
    }
}

#[tokio::test]
async fn a_host_in_another_spelling_is_another_host() {
    let env = cached().await;
    let origin = reflecting("").await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    let hosts = [
        sandbox.host(),
        sandbox.host().to_uppercase(),
        format!("{}:8081", sandbox.host()),
        format!("{}.", sandbox.host()),
        format!("8080-{}.evil.test", sandbox.id),
        format!("8080-{}", sandbox.id),
    ];
    let requests: Vec<_> = hosts.iter().map(|host| ("/", vec![("Host", host.as_str())])).collect();
    told_apart(env, &requests).await;
}

#[tokio::test]
async fn behind_a_mask_the_host_that_the_client_used_still_counts() {
    let env = cached().await;
    let origin = reflecting("").await;
    let sandbox = settled(env, env.sandbox(&origin).field("MaskRequestHost", "inner.test").await).await;
    let evil = format!("8080-{}.evil.test", sandbox.id);
    let own = sandbox.host();
    told_apart(env, &[("/", vec![("Host", &evil)]), ("/", vec![("Host", &own)])]).await;
}

#[tokio::test]
async fn a_prefix_in_another_spelling_is_another_prefix() {
    let env = cached().await;
    let origin = reflecting("").await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    let shared = env.proxy.http().to_string();
    let (lower, upper) =
        (format!("/sandbox/{}/8080/a", sandbox.id), format!("/sandbox/{}/8080/a", sandbox.id.to_uppercase()));
    told_apart(env, &[(&lower, vec![("Host", &shared)]), (&upper, vec![("Host", &shared)])]).await;
}

#[tokio::test]
async fn the_three_forms_are_three() {
    let env = cached().await;
    let origin = reflecting("").await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    let named: Vec<_> = By::ALL.into_iter().map(|by| env.naming(by, &sandbox, "/a")).collect();
    let requests: Vec<Request<'_>> = named
        .iter()
        .map(|(target, fields)| (target.as_str(), fields.iter().map(|(n, v)| (*n, v.as_str())).collect()))
        .collect();
    told_apart(env, &requests).await;
}

#[tokio::test]
async fn path_and_query_count_to_the_byte() {
    let env = cached().await;
    let origin = reflecting("").await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    let host = sandbox.host();
    let targets =
        ["/a", "/A", "/a/", "//a", "/%61", "/a?", "/a?b", "/a?b=1&c=2", "/a?c=2&b=1", "/a%3Fb", "/x/../a"];
    let requests: Vec<Request<'_>> = targets.iter().map(|target| (*target, vec![("Host", &*host)])).collect();
    told_apart(env, &requests).await;
    let absolute = format!("http://{host}/a");
    is_hit(&env.raw("GET", &absolute, &[("Host", &host)], "").await, &env.get(&sandbox, "/a").await.text());
}

#[tokio::test]
async fn two_ports_and_two_sandboxes_are_told_apart_in_every_form() {
    let env = cached().await;
    let (one, two, three) = (app(&[PUBLIC]).await, app(&[PUBLIC]).await, app(&[PUBLIC]).await);
    let other_port = two.port().to_string();
    let first = settled(env, env.sandbox(&one).field("9090", &other_port).await).await;
    let second = settled(env, env.sandbox(&three).await).await;
    for by in By::ALL {
        for sandbox in [&first, &first.at_port(9090), &second] {
            is_miss(&get(env, by, sandbox, "/", &[]).await);
            assert!(hit(&get(env, by, sandbox, "/", &[]).await));
        }
    }
    assert_eq!([asked(&one), asked(&two), asked(&three)], [3, 3, 3]);
}

#[tokio::test]
async fn the_scheme_counts_and_the_protocol_does_not() {
    let tls = support::with_tls(&json!({ "response_cache": { "enabled": true } })).await;
    let origin = reflecting("").await;
    let sandbox = settled(&tls.env, tls.env.sandbox(&origin).await).await;
    let host = sandbox.host();
    let plain = tls.env.get(&sandbox, "/").await;
    is_miss(&plain);
    let secure = tls.h1().await.call("GET", "/", &[("Host", &host)], "").await;
    is_miss(&secure);
    assert_ne!(plain.text(), secure.text());
    is_hit(&tls.env.get(&sandbox, "/").await, &plain.text());
    is_hit(&tls.h1().await.call("GET", "/", &[("Host", &host)], "").await, &secure.text());
    is_hit(&tls.h2().await.get(&host, "/", &[]).await, &secure.text());
}

#[tokio::test]
async fn the_fields_that_vary_names_count_to_the_byte() {
    let env = cached().await;
    let origin = reflecting("X-Tenant").await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    let host = sandbox.host();
    let with = |tenants: &[&'static str]| {
        let mut fields = vec![("Host", &*host)];
        fields.extend(tenants.iter().map(|tenant| ("X-Tenant", *tenant)));
        ("/", fields)
    };
    let requests = [
        with(&[]),
        with(&["a"]),
        with(&["b"]),
        with(&["A"]),
        with(&["a", "b"]),
        with(&["a, b"]),
        with(&[""]),
    ];
    told_apart(env, &requests).await;
    // What Vary does not name is not looked at.
    let (target, fields) = with(&["a"]);
    let mut fields = fields.clone();
    fields.push(("X-Other", "x"));
    assert!(hit(&env.raw("GET", target, &fields, "").await));
}

#[tokio::test]
async fn a_field_that_is_taken_away_on_the_way_is_not_compared() {
    let env = cached().await;
    let origin = reflecting("X-Tenant").await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    // The application sees no tenant, and must not become the tenant's page.
    let attack = [("X-Tenant", "victim"), ("Connection", "keep-alive, X-Tenant")];
    let poisoned = env.get_with(&sandbox, "/", &attack).await;
    is_bypass(&poisoned);
    assert!(poisoned.text().contains("x-tenant=[]"), "{}", poisoned.text());
    let victim = env.get_with(&sandbox, "/", &[("X-Tenant", "victim")]).await;
    is_miss(&victim);
    assert!(victim.text().contains("victim"));
}

#[tokio::test]
async fn what_a_client_claims_about_itself_poisons_nothing() {
    let env = cached().await;
    let origin = scripted(|exchange| async move {
        // It believes whatever it is told.
        let all: Vec<String> = exchange.request.headers.pairs().iter().map(|(_, v)| v.clone()).collect();
        exchange.reply(200, &[PUBLIC], all.join(" ")).await
    })
    .await;
    let sandbox = settled(env, env.sandbox(&origin).await).await;
    for name in [
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Forwarded-Port",
        "X-Forwarded-Scheme",
        "X-Forwarded-Server",
        "X-Forwarded-Prefix",
        "X_Forwarded_Host",
        "Forwarded",
        "X-Host",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-HTTP-Method-Override",
        "X-Real-IP",
    ] {
        let target = format!("/{name}");
        env.get_with(&sandbox, &target, &[(name, "evil.test")]).await.passed(200);
        let honest = env.get(&sandbox, &target).await;
        assert!(!honest.text().contains("evil"), "{name}: {}", honest.text());
    }
    // A body that goes with a GET is none that another GET asked for.
    env.call(By::Host, &sandbox, "GET", "/fat", &[("X-Mark", "evil.test")], "evil").await.passed(200);
    assert!(!env.get(&sandbox, "/fat").await.text().contains("evil"));
}

#[tokio::test]
async fn through_a_trusted_proxy_only_what_that_proxy_says_is_taken() {
    let env = with(json!({ "routing": { "trusted_proxies": ["127.0.0.1/32", "10.0.0.0/8"] } })).await;
    let origin = app(&[PUBLIC]).await;
    let sandbox = settled(&env, env.sandbox(&origin).await).await;
    let balancer = [("X-Forwarded-For", "192.0.2.1, 10.0.0.1"), ("X-Forwarded-Proto", "https")];
    is_miss(&env.get_with(&sandbox, "/", &balancer).await);
    let another = [("X-Forwarded-For", "192.0.2.2"), ("X-Forwarded-Proto", "https")];
    is_hit(&env.get_with(&sandbox, "/", &another).await, "1");
    // The scheme is in the key; a client's own words before its address are not the proxy's.
    is_miss(&env.get_with(&sandbox, "/", &[("X-Forwarded-Proto", "http")]).await);
    is_bypass(&env.get_with(&sandbox, "/", &[("X-Forwarded-For", "evil.test, 192.0.2.1")]).await);
    is_bypass(&env.get_with(&sandbox, "/", &[("X-Forwarded-Port", "99")]).await);
}
