"""Eight text columns of different kinds, to compare FSST with lz4 and zstd."""

from __future__ import annotations

import json
import random
import uuid

import pyarrow as pa

__all__ = ["texts"]

_FIRST = [
    "Anna",
    "Ben",
    "Chiara",
    "David",
    "Elena",
    "Farid",
    "Grace",
    "Hiroshi",
    "Ingrid",
    "Jamal",
    "Katarzyna",
    "Liam",
    "Mei",
    "Nikolai",
    "Olivia",
    "Pedro",
    "Quentin",
    "Rosa",
    "Sofia",
    "Tariq",
    "Ulrike",
    "Victor",
    "Wanjiru",
    "Xavier",
    "Yuki",
    "Zoe",
]
_LAST = [
    "Andersson",
    "Baker",
    "Castillo",
    "Dubois",
    "Eriksen",
    "Fischer",
    "Garcia",
    "Huang",
    "Ivanov",
    "Johnson",
    "Kowalski",
    "Lindqvist",
    "Moreau",
    "Nakamura",
    "Okafor",
    "Petrov",
    "Quispe",
    "Rossi",
    "Schneider",
    "Takahashi",
    "Ueda",
    "Varga",
    "Williams",
    "Xu",
    "Yilmaz",
    "Zimmermann",
]
_PATHS = (
    "cart",
    "catalogue/shoes",
    "catalogue/books",
    "account/orders",
    "search",
    "help/returns",
    "static/img",
)
_LEVELS = ("INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR")
_EVENTS = (
    "connection from {} closed after {} ms",
    "request {} served in {} ms",
    "cache miss for key user:{}, loaded {} bytes",
    "retry {} of transfer {} scheduled",
)
_CITIES = (
    "北京市朝阳区",
    "上海市浦东新区",
    "東京都新宿区",
    "大阪府大阪市",
    "서울특별시 강남구",
    "广州市天河区",
)
_GOODS = (
    "牛奶和面包",
    "手机充电器",
    "運動靴",
    "日本語の辞書",
    "한국 화장품",
    "电动自行车",
    "绿茶",
    "冷蔵庫",
    "笔记本电脑",
)


def texts(prose: list[str], count: int = 100_000) -> pa.Table:
    """Return made-up text of eight kinds, but for the prose.

    Args:
        prose: sentences that somebody wrote; repeated if they are fewer than `count`.
        count: of rows.
    """
    dice = random.Random(11)
    pick, number = dice.choice, dice.randrange
    columns: dict[str, list[str]] = {
        name: [] for name in ("name", "url", "log", "uuid", "json", "code", "cjk")
    }
    for row in range(count):
        columns["name"].append(f"{pick(_FIRST)} {pick('ABCDEFGHJKLM')}. {pick(_LAST)}")
        columns["url"].append(f"https://shop.example.com/{pick(_PATHS)}/{number(10**6)}?ref={number(500)}")
        when = f"2026-03-{1 + row * 28 // count:02}T{number(24):02}:{number(60):02}:{number(60):02}"
        event = pick(_EVENTS).format(number(10**6), number(2000))
        columns["log"].append(f"{when} {pick(_LEVELS)} worker-{number(16)} {event}")
        columns["uuid"].append(str(uuid.UUID(int=dice.getrandbits(128), version=4)))
        record = {
            "id": row,
            "user": pick(_FIRST).lower(),
            "price": number(10**5) / 100,
            "paid": bool(number(2)),
        }
        columns["json"].append(json.dumps({**record, "tags": dice.sample(_PATHS, 2)}))
        columns["code"].append(f"{pick('ABCDEFGH')}{number(100):02}-{number(10**4):04}.{number(10)}")
        columns["cjk"].append(f"{pick(_CITIES)}{number(300)}号 {pick(_GOODS)}、{pick(_GOODS)}")
    columns["prose"] = [prose[row % len(prose)] for row in range(count)]
    return pa.table(columns)
