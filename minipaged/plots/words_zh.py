"""图中的文字，中文。键与 words.py 相同；这里没有的词用英文显示。"""

from __future__ import annotations

WORDS: dict[str, str] = {
    # 06 显存碎片
    "06.step": "步",
    "06.slot": "槽位",
    "06.nobody": "无",
    "06.join": "；",
    "06.batches.static": "静态批处理：整批等最长的请求，共 {steps} 步，{all} 个位置空着 {idle} 个",
    "06.batches.continuous": "连续批处理：位置一空就补上，共 {steps} 步，{all} 个位置空着 {idle} 个",
    "06.batches.place": "位置 {n}",
    "06.batches.sentence": (
        "静态批处理用 {static} 步，每个位置每步算一次，{static_all} 个里空着 {static_idle} 个；"
        "连续批处理用 {continuous} 步，{continuous_all} 个里空着 {continuous_idle} 个。"
    ),
    "06.reservation.title": "{taken} 个槽位别人用不了，其中只有 {written} 个存着词元",
    "06.reservation.0": "提示词\n{n}",
    "06.reservation.1": "已输出\n{n}",
    "06.reservation.2": "预留\n{n}",
    "06.reservation.3": "内部碎片\n{n}",
    "06.reservation.4": "外部碎片\n（取整）{n}",
    "06.reservation.sentence": (
        "{taken} 个槽位里，{prompt} 个存提示词，{output} 个存已有的输出；预留 {reserved} 个，"
        "内部碎片 {internal} 个，外部碎片（取整）{external} 个。"
    ),
    "06.pool.now": "第 {step} 步：运行中 {running}；等待中 {waiting}",
    "06.pool.sentence": (
        "第 {step} 步，共 {slots} 个槽位：存词元 {tokens}，预留 {reserved}，内部碎片 {internal}，"
        "外部碎片 {external}，闲置 {idle}"
    ),
    "06.pool.waits": "；{first} 在等，空闲槽位有 {free} 个，其中连成一片的最多 {hole} 个。",
    "06.pool.idle": "；没有请求在等。",
    "06.legend.used": "已写入",
    "06.legend.reserved": "预留",
    "06.legend.wasted": "内部碎片：永远不用",
    "06.legend.rounding": "外部碎片：取整",
    "06.legend.free": "空闲",
    "06.time.title": "内存随时间的变化：斜边以下存着词元，以上只是占着",
    "06.time.sentence": (
        "{n} 个请求在 {steps} 步里先后用过 {slots} 个槽位；每条斜边以下的槽位存着词元，以上的占着但是空的。"
    ),
    "06.refused.hole": "空闲 {n}",
    "06.refused.title": "第 {step} 步：{name} 需要 {needed} 个槽位，空闲有 {free} 个，却只能等",
    "06.refused.sentence": (
        "第 {step} 步，请求 {name} 需要连续的 {needed} 个槽位；空闲的有 {free} 个，但最长的空洞只有 {hole} 个。"
    ),
    "06.bars.ours": "我们",
    "06.bars.paper": "论文",
    "06.bars.percent": "占池中槽位的百分比（%）",
    "06.bars.title": "连事先知道长度的 {best}，也只有 {tokens:.0f}% 的槽位存着词元",
    "06.bars.each": "{name} {ours:.1f} 对 {paper:.1f}",
    "06.bars.sentence": (
        "存着词元的槽位所占百分比，我们的结果对论文的结果：{each}；各部分中最大的差是 {furthest:.1f} 个百分点。"
    ),
    "06.part.tokens": "词元",
    "06.part.reserved": "预留",
    "06.part.internal": "内部碎片",
    "06.part.external": "外部碎片等",
    "06.part.idle": "闲置",
    "06.batched.axis": "同时运行的请求数（平均）",
    "06.batched.title": "{last} 同时运行 {high:.1f} 个请求，是 {first}（{low:.1f} 个）的 {ratio:.1f} 倍",
    "06.batched.sentence": (
        "同样大的显存，{first} 平均同时运行 {low:.1f} 个请求，{last} 运行 {high:.1f} 个，是前者的 {ratio:.1f} 倍。"
    ),
    "06.whatif.row": "{name}\n同时 {n:.1f} 个",
    "06.whatif.each": "{name} {tokens:.0f}%，同时运行 {n:.1f} 个",
    "06.whatif.title": "存着词元的槽位：从 {low:.0f}%（{least}）到 {high:.0f}%（{most}）",
    "06.whatif.sentence": "存着词元的槽位：{each}。",
    "06.whatif.refused": "最多有 {n} 个请求被拒绝，因为它们永远放不下。",
    "06.padding.top": "填充：{rows} 行，每行 {longest}，{cells} 个位置里有 {empty} 个是空的",
    "06.padding.low": "打包：{total} 个位置，一个都不空",
    "06.padding.sentence": "填充后的批有 {cells} 个位置，其中 {empty} 个是空的；打包之后，同样的词元只要 {total} 个。",
}
