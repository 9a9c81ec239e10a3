"""Health, readiness, metrics, models, version."""

import asyncio
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

import asyncpage


async def scrape(site) -> dict[str, float]:
    answer = await site.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.mark.parametrize("state", ["loading", "ready", "restarting", "draining", "dead"])
async def test_health_is_200_while_the_loop_turns(site, state: str) -> None:
    site.engine.state = state
    answer = await site.get("/health")
    assert answer.status == 200
    assert answer.json["state"] == state


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_ping_is_health_by_another_name(site, method: str) -> None:
    site.engine.state = "restarting"
    answer = await site.get("/ping", method)
    assert answer.status == 200
    assert answer.text == ("" if method == "HEAD" else (await site.get("/health")).text)


async def test_the_load_is_the_number_of_open_calls(site) -> None:
    assert (await site.get("/load")).json == {"server_load": 0}
    site.engine.hold()
    asking = asyncio.create_task(site.post("/v1/completions", {"prompt": "abc", "n": 2}))
    await site.engine.until(lambda: len(site.engine.runs) == 2)
    assert (await site.get("/load")).json == {"server_load": 1}
    site.engine.release()
    await asking
    assert (await site.get("/load")).json == {"server_load": 0}


@pytest.mark.parametrize("state", ["loading", "restarting", "draining", "dead"])
async def test_ready_is_503_with_the_reason_in_any_other_state(site, state: str) -> None:
    assert (await site.get("/ready")).status == 200
    site.engine.state = state
    answer = await site.get("/ready")
    assert answer.status == 503
    assert answer.json["error"]["code"] == state
    assert int(answer.headers["Retry-After"]) >= 1


async def test_ready_asks_the_actors(site) -> None:
    site.engine.is_hung = True
    answer = await site.get("/ready")
    assert answer.status == 503
    assert answer.json["error"]["code"] == "not_answering"
    assert (await site.get("/health")).status == 200


async def test_gauges_are_the_actors_own_numbers_of_the_moment(site) -> None:
    site.engine.hold()
    asking = asyncio.create_task(site.post("/v1/completions", {"prompt": "abc", "n": 2}))
    await site.engine.until(lambda: len(site.engine.runs) == 2)
    found = await scrape(site)
    assert found["asyncpage_num_requests_running"] == 2
    assert found["asyncpage_num_requests_waiting"] == 0
    assert found["asyncpage_kv_cache_blocks_total"] == 10
    assert found["asyncpage_kv_cache_blocks_used"] == 2
    assert found["asyncpage_kv_cache_blocks_free"] == 8
    assert found["asyncpage_kv_cache_blocks_cached"] == 4
    assert found["asyncpage_kv_cache_usage_perc"] == 0.2
    assert found["asyncpage_num_preemptions_total"] == 3
    assert found["asyncpage_actor_stat{actor=scheduler,stat=running}"] == 2
    assert found["asyncpage_actors_answer"] == 1
    site.engine.release()
    await asking
    found = await scrape(site)
    assert found["asyncpage_num_requests_running"] == 0
    assert found["asyncpage_kv_cache_blocks_used"] == 0


async def test_counters_agree_with_the_usage_that_clients_saw(site) -> None:
    prompt = "p" * 40
    bodies = [await site.complete(prompt=prompt, max_tokens=3, n=2), await site.complete(prompt=prompt)]
    await site.stream("/v1/completions", prompt="abc")
    await site.post("/v1/completions", {"prompt": "x" * 600})
    await site.post("/v1/completions", {"prompt": "abc", "frobnicate": 1, "twice": 2})
    found = await scrape(site)
    usage = [body["usage"] for body in bodies]
    assert found["asyncpage_prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usage) + 3 + 3
    assert found["asyncpage_generation_tokens_total"] == sum(u["completion_tokens"] for u in usage) + 4 + 4
    assert found["asyncpage_request_success_total{finished_reason=length}"] == 3
    assert found["asyncpage_request_success_total{finished_reason=stop}"] == 2
    assert found["asyncpage_request_failure_total{reason=context_length_exceeded}"] == 1
    assert found["asyncpage_ignored_fields_total"] == 2
    assert found["asyncpage_time_to_first_token_seconds_count"] == 5
    assert found["asyncpage_inter_token_latency_seconds_count"] == 2 + 2 + 15 + 3 + 3
    assert found["asyncpage_e2e_request_latency_seconds_count"] == 4
    assert found["asyncpage_prefix_cache_queries_total"] == 40 + 40 + 3 + 3
    assert found["asyncpage_prefix_cache_hits_total"] == 32
    assert found["asyncpage_http_responses_total{route=/v1/completions,status=200}"] == 4
    assert found["asyncpage_http_responses_total{route=/v1/completions,status=400}"] == 1


async def test_no_label_takes_what_a_client_chose(site) -> None:
    for index in range(30):
        await site.get(f"/path-{index}", **{"X-Request-Id": f"client-{index}"})
        await site.get(f"/v1/models/model-{index}")
        await site.post("/v1/completions", {"prompt": "a", "model": f"model-{index}"})
    await scrape(site)
    before = set(await scrape(site))
    await site.get("/path-x")
    await site.post("/v1/completions", {"prompt": "a", "model": "model-x"})
    assert set(await scrape(site)) == before
    assert not [name for name in before if re.search("path-|client-|model-", name)]


async def test_metrics_come_also_when_no_actor_answers(site) -> None:
    for _ in range(2):
        found = await scrape(site)
        site.engine.is_hung = True
    assert found["asyncpage_actors_answer"] == 0
    site.engine.state = "loading"
    assert (await scrape(site))["asyncpage_actors_answer"] == 0


async def test_models_are_listed_under_every_name_and_found_by_it(site) -> None:
    body = (await site.get("/v1/models")).json
    assert body["object"] == "list"
    first, alias = body["data"]
    assert first == {
        "id": "echo",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "asyncpage",
        "root": "echo",
        "parent": None,
        "max_model_len": 512,
    }
    assert (alias["id"], alias["root"], alias["parent"]) == ("org/alias", "echo", "echo")
    for path in ("/v1/models/org/alias", "/v1/models/org%2Falias"):
        assert (await site.get(path)).json == alias
    answer = await site.get("/v1/models/absent")
    assert answer.status == 404
    assert answer.json["error"]["code"] == "model_not_found"
    site.engine.state = "loading"
    assert (await site.get("/v1/models/echo")).json["max_model_len"] is None


async def test_the_version_is_the_packages(site) -> None:
    assert (await site.get("/version")).json == {"version": asyncpage.__version__}
