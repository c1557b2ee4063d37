// What is wrong with the page as it is drawn now: lines "problem: element: text (how many)".
() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    const known = new Map();
    const rgba = (color) => {
        if (!known.has(color)) {
            canvas.clearRect(0, 0, 1, 1);
            canvas.fillStyle = color;
            canvas.fillRect(0, 0, 1, 1);
            known.set(color, [...canvas.getImageData(0, 0, 1, 1).data].map((value) => value / 255));
        }
        return known.get(color);
    };
    const over = (top, below) => below.map((value, k) => top[3] * top[k] + (1 - top[3]) * value);
    const ancestors = (element) => {
        const all = [];
        for (let at = element; at; at = at.parentElement) all.unshift(at);
        return all;
    };
    const luminance = (color) => {
        const [r, g, b] = color.map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (element, style) => {
        let ground = [1, 1, 1], opacity = 1;
        for (const at of ancestors(element)) {
            const look = getComputedStyle(at);
            ground = over(rgba(look.backgroundColor), ground);
            opacity *= Number(look.opacity);
        }
        const ink = rgba(element instanceof SVGElement ? style.fill : style.color);
        const drawn = over([ink[0], ink[1], ink[2], ink[3] * opacity], ground);
        const [dark, light] = [luminance(drawn), luminance(ground)].sort((a, b) => a - b);
        return (light + 0.05) / (dark + 0.05);
    };
    const name = (element) => element.tagName.toLowerCase() + (element.id ? "#" + element.id : "")
        + [...element.classList].map((part) => "." + part).join("");
    const problems = new Map(); // problem and kind of element -> the first such text, and how many there are
    const say = (problem, element) => {
        const key = `${problem}: ${name(element)}`;
        const seen = problems.get(key) ?? [element.textContent.trim().replace(/\s+/g, " ").slice(0, 60), 0];
        problems.set(key, [seen[0], seen[1] + 1]);
    };

    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
        if (!text || element.closest("script, style, noscript, template, .headerlink, [aria-hidden=true]")) continue;
        if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const box = element.getBoundingClientRect();
        if (box.width < 2 || box.height < 2 || box.right < 0) continue; // for screen readers, or a closed drawer
        if (!element.closest("code, pre, svg") && /^\|.*\||\*\*[A-Za-z]|\]\(|`|^#{1,6} |\|\s*:?-{3}|:[a-z]+:$/.test(text))
            say("markdown left in the text", element);
        const style = getComputedStyle(element), size = parseFloat(style.fontSize);
        if (size < 11) say(`text of ${size.toFixed(1)} px`, element);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        const ratio = contrast(element, style);
        if (ratio < (large ? 3 : 4.5)) say(`contrast of ${ratio.toFixed(2)}`, element);
    }
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > width + 1)
        for (const element of document.body.querySelectorAll("*")) {
            const scrolls = ancestors(element.parentElement).slice(2).some((at) => getComputedStyle(at).overflowX !== "visible");
            if (!scrolls && element.getBoundingClientRect().right > width + 1) say("wider than the screen", element);
        }
    for (const image of document.images) // on a narrow screen, a drawing may scroll
        if (width > 1200 && image.parentElement.scrollWidth > image.parentElement.clientWidth + 1)
            problems.set(`cut off: ${image.getAttribute("src")}`, [image.alt, 1]);
    for (const image of document.images)
        if (image.complete && !image.naturalWidth) problems.set(`broken image: ${image.getAttribute("src")}`, [image.alt, 1]);
    return [...problems].map(([key, [text, count]]) => `${key}: ${text} (${count})`);
}
