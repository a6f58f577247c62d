"""Where a webhook may lead is asked when it is made and when it is changed."""

import pytest
from starlette.testclient import TestClient

inward = [
    "https://127.0.0.1/hook",
    "https://localhost/hook",
    "https://[::1]/hook",
    "https://[::ffff:169.254.169.254]/latest",
    "https://10.0.0.1/",
    "https://2130706433/",
    "https://user@hooks.example/",
    "http://hooks.example/",
    "file:///etc/passwd",
    "gopher://hooks.example/",
]


@pytest.mark.parametrize("url", inward)
def test_no_webhook_leads_inward(admin: TestClient, url: str) -> None:
    admin.post("/tenants", json={"name": "acme"})
    fields = {"tenant": "acme", "name": "ops", "events": ["budget.threshold"]}
    assert admin.post("/webhooks", json={**fields, "url": url}).status_code in (400, 403)
    good = admin.post("/webhooks", json={**fields, "url": "https://hooks.example/"})
    assert good.status_code == 201, good.text
    changed = admin.patch("/webhooks/ops", json={"url": url})
    assert changed.status_code in (400, 403), changed.text
    (shown,) = admin.get("/webhooks").json()["items"]
    assert shown["url"] == "https://hooks.example/"
