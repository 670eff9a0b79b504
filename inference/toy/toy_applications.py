"""Six toy applications, drawn by a seed, whose right answer follows from the words given. Imports no torch."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# English words, each followed by its Spanish translation.
_PAIRS = {
    "animals": """
cat gato  dog perro  horse caballo  cow vaca  sheep oveja  goat cabra
pig cerdo  hen gallina  duck pato  goose ganso  mouse ratón  rabbit conejo
fox zorro  wolf lobo  bear oso  lion león  tiger tigre  monkey mono
elephant elefante  camel camello  whale ballena  shark tiburón  fish pez  frog rana
snake serpiente  turtle tortuga  eagle águila  owl búho  bee abeja  ant hormiga
""",
    "food": """
bread pan  cheese queso  milk leche  egg huevo  rice arroz  soup sopa
meat carne  ham jamón  butter mantequilla  oil aceite  salt sal  sugar azúcar
honey miel  apple manzana  pear pera  lemon limón  grape uva  cherry cereza
peach durazno  melon melón  onion cebolla  garlic ajo  potato patata  carrot zanahoria
bean frijol  nut nuez  cake pastel  tea té  coffee café  wine vino
""",
    "clothes": """
shirt camisa  dress vestido  skirt falda  coat abrigo  jacket chaqueta  sweater suéter
shoe zapato  boot bota  sock calcetín  hat sombrero  cap gorra  scarf bufanda
glove guante  belt cinturón  tie corbata  button botón  pocket bolsillo  sleeve manga
collar cuello  ring anillo  necklace collar  bracelet pulsera  watch reloj  glasses gafas
purse bolso  apron delantal  vest chaleco  cloak capa  sandal sandalia  lace cordón
""",
    "body": """
head cabeza  hair pelo  face cara  eye ojo  ear oreja  nose nariz
mouth boca  tooth diente  tongue lengua  chin barbilla  neck garganta  shoulder hombro
arm brazo  elbow codo  wrist muñeca  hand mano  finger dedo  nail uña
chest pecho  back espalda  waist cintura  hip cadera  leg pierna  knee rodilla
ankle tobillo  foot pie  heel talón  skin piel  bone hueso  heart corazón
""",
    "nature": """
sun sol  moon luna  star estrella  sky cielo  cloud nube  rain lluvia
snow nieve  wind viento  storm tormenta  fire fuego  water agua  river río
lake lago  sea mar  beach playa  island isla  mountain montaña  hill colina
valley valle  forest bosque  tree árbol  leaf hoja  root raíz  flower flor
grass hierba  stone piedra  sand arena  earth tierra  desert desierto  cave cueva
""",
    "house": """
door puerta  window ventana  wall pared  roof techo  floor suelo  stairs escalera
kitchen cocina  bedroom dormitorio  garden jardín  garage garaje  table mesa  chair silla
bed cama  sofa sofá  lamp lámpara  mirror espejo  carpet alfombra  curtain cortina
pillow almohada  blanket manta  plate plato  cup taza  glass vaso  fork tenedor
knife cuchillo  spoon cuchara  pan sartén  oven horno  key llave  broom escoba
""",
    "work": """
teacher maestro  doctor médico  nurse enfermera  lawyer abogado  judge juez  baker panadero
cook cocinero  waiter camarero  farmer granjero  fisherman pescador  carpenter carpintero  plumber fontanero
painter pintor  writer escritor  singer cantante  dancer bailarín  actor actriz  soldier soldado
sailor marinero  pilot piloto  driver conductor  tailor sastre  barber barbero  butcher carnicero
miner minero  guard guardia  mayor alcalde  king rey  queen reina  clerk empleado
""",
    "qualities": """
red rojo  blue azul  green verde  yellow amarillo  white blanco  black negro
brown marrón  pink rosa  grey gris  purple morado  big grande  small pequeño
tall alto  short bajo  long largo  wide ancho  narrow estrecho  thick grueso
thin delgado  heavy pesado  light ligero  fast rápido  slow lento  hot caliente
cold frío  new nuevo  old viejo  clean limpio  dirty sucio  happy feliz
""",
}
THEMES: dict[str, dict[str, str]] = {
    theme: dict(zip(text.split()[::2], text.split()[1::2], strict=True)) for theme, text in _PAIRS.items()
}
SPANISH: dict[str, str] = {word: spanish for pairs in THEMES.values() for word, spanish in pairs.items()}
THEME_OF: dict[str, str] = {word: theme for theme, pairs in THEMES.items() for word in pairs}

MAX_WORDS = 60  # the longest input of a request; the bundled model is trained on slightly longer ones
_REMOVED_THEMES = frozenset({"animals", "food", "clothes"})
_VOCABULARY = tuple(SPANISH)


@dataclass(frozen=True)
class ToyApplication:
    """An instruction, and the function that computes the right answer from the input's words."""

    instruction: str
    answer: Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class ToyRequest:
    """A request of one application; `output` is the right answer."""

    application: str
    instruction: str
    input: str
    output: str


def _remove(words: Sequence[str]) -> str:
    return " ".join(word for word in words if THEME_OF[word] not in _REMOVED_THEMES) or "nothing"


def _classify(words: Sequence[str]) -> str:
    return Counter(THEME_OF[word] for word in words).most_common(1)[0][0]


APPLICATIONS: dict[str, ToyApplication] = {
    "repeat": ToyApplication("Repeat the text.", " ".join),
    "translate": ToyApplication(
        "Translate to Spanish word by word.", lambda words: " ".join(SPANISH[word] for word in words)
    ),
    "remove": ToyApplication("Remove animals, food and clothes.", _remove),
    "double": ToyApplication("Write each word twice.", lambda words: " ".join(f"{word} {word}" for word in words)),
    "summarize": ToyApplication("Summarize: keep every third word.", lambda words: " ".join(words[::3])),
    "classify": ToyApplication("Which theme is it about?", _classify),
}


def toy_requests(
    n: int,
    seed: int,
    max_words: int = MAX_WORDS,
    *,
    median_words: float = 10.0,
    applications: Sequence[str] = tuple(APPLICATIONS),
) -> list[ToyRequest]:
    """Draws `n` requests by a seed, with log-normal input lengths of at most `max_words`."""
    rng = random.Random(seed)
    requests = []
    for _ in range(n):
        words = round(rng.lognormvariate(math.log(median_words), 0.9))
        requests.append(draw_request(rng.choice(applications), min(max(words, 2), max_words), rng))
    return requests


def draw_request(application: str, words: int, rng: random.Random) -> ToyRequest:
    """Draws a request of `words` different words; in an input to classify, most words are of one theme."""
    toy = APPLICATIONS[application]
    drawn = _draw_mostly_one_theme(words, rng) if application == "classify" else rng.sample(_VOCABULARY, words)
    return ToyRequest(application, toy.instruction, " ".join(drawn), toy.answer(drawn))


def _draw_mostly_one_theme(words: int, rng: random.Random) -> list[str]:
    theme = rng.choice(tuple(THEMES))
    leading = min(words // 2 + 1, len(THEMES[theme]))
    others = [word for word in _VOCABULARY if THEME_OF[word] != theme]
    drawn = rng.sample(tuple(THEMES[theme]), leading) + rng.sample(others, words - leading)
    rng.shuffle(drawn)
    return drawn
