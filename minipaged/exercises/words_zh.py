"""检查函数说的话，中文。键与 words.py 相同；这里没有的词用英文显示。"""

from __future__ import annotations

WORDS: dict[str, str] = {
    # 各章共用
    "base.result": "{sign} {status}：{message}",
    "base.status.not attempted": "尚未作答",
    "base.status.wrong": "不对",
    "base.status.right": "正确",
    "base.blank": "把上面单元格里的 ... 换成你的答案，再运行一次",
    "base.function": "这里需要一个函数，收到的却是 {kind}",
    "base.raised": "用 ({shown}) 调用时，你的代码抛出了 {kind}：{error}",
    "base.nothing": "你的代码运行了，却什么也没有返回：是不是每条路径都以 `return ...` 结束？",
    "base.endless": "运行超过了 {seconds:g} 秒：里面是不是有一个停不下来的循环？",
    "base.list": "一个列表",
    "base.not_listed": "你返回的是 {value}；请返回{asked}",
    "base.not_whole": "你返回的是 {value}，这里应该是一个整数",
    "base.unreadable": "无法读取这个答案：{kind}：{error}",
    "base.shape": "形状为 {shape} 的 {kind}",
    "base.guess.none": "还没有猜",
    "base.guess.mine": "你猜的是 {mine} {unit}",
    "base.guess.right": "（猜对了）",
    "base.guess.wrong": "（再想想）",
    "base.guess.computed": "{said} | 计算结果：{actual} {unit}",
}
