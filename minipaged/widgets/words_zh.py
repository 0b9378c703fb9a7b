"""小部件上的文字，中文。键与 words.py 相同；这里没有的词用英文显示。"""

from __future__ import annotations

WORDS: dict[str, str] = {
    # 06 显存碎片
    "06.player.step": "步",
    "06.player.allocator": "分配器",
    "06.player.play": "播放",
    "06.whatif.prompt": "平均提示词长度",
    "06.whatif.output": "平均输出长度",
    "06.whatif.spread": "离散程度（标准差 / 均值）",
    "06.whatif.max_len": "最大长度",
    "06.whatif.pool": "池的槽位数",
}
